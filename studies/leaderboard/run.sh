#!/usr/bin/env bash
# Every search and cell of the leaderboard, in order of importance. What is done is skipped, so stop it and start it
# again at will. DATA has ucm, aid, dubai and drone; RESULTS, CACHE and WORKERS may be set too.
set -euo pipefail
data=${DATA:?set DATA to the folder of ucm, aid, dubai and drone}
results=${RESULTS:-results/leaderboard}
cache=${CACHE:-$HOME/.cache/ldstyle}
workers=${WORKERS:-2}
ldstyle=${LDSTYLE:-ldstyle}

cells() { # folder, domains, targets, seeds, methods and further options
	local folder=$1 domains=$2 targets=$3 seeds=$4
	shift 4
	# shellcheck disable=SC2086
	$ldstyle bench run --data "$data" --domains $domains --splits $targets --seeds "$seeds" --preset study \
		--methods "$@" --results "$results/$folder" --workers "$workers" --cache "$cache"
}

scenes() { # seeds, methods
	local seeds=$1
	shift
	$ldstyle bench run --data synthetic --splits all --seeds "$seeds" --preset demo --methods "$@" \
		--results "$results/synthetic" --workers "$workers" --cache "$cache"
}

search() { # sources, method, parameters
	local sources=$1 method=$2
	shift 2
	# shellcheck disable=SC2086
	$ldstyle search --method "$method" --sources $sources --data "$data" --preset study --set optimizer.epochs=3 \
		--shared-trials 0 --trials 8 --parameters "$@" --workers "$workers" --cache "$cache" \
		--out "$results/search/study-${sources// /+}"
}

copy_records() { # folder, split, seeds, methods: of cells with the same settings in other folders
	[ -e "$results/$1/records.jsonl" ] && return
	mkdir -p "$results/$1"
	grep -hE "\"cell\": \"study-($4)-$2-seed[$3]\"" "$results"/{own-settings,other-targets}/records.jsonl > "$results/$1/copied.tmp"
	mv "$results/$1/copied.tmp" "$results/$1/records.jsonl"
}

satellite="ucm aid dubai"
own="own-settings"
extra=studies/leaderboard

# 1. UCM + AID -> dubai, every method with the settings of its file: the rows of the claims.
cells $own "$satellite" dubai 8 erm efdmix ld-efdmix
cells $own "$satellite" dubai 4 swad ld-efdmix+swad

# 2. Perfect localization: synthetic scenes with their masks.
scenes 4 erm efdmix ld-efdmix ld-efdmix-masks $extra/ld-efdmix-uniform.yaml

# 3. The other rows of the claims.
cells $own "$satellite" dubai 8 mixstyle ld-mixstyle
cells $own "$satellite" dubai 8 swad ld-efdmix+swad

copy_records epoch-average s3 0-7 erm
cells epoch-average "$satellite" dubai 8 swad ld-efdmix+swad --set swad.evaluate_every=null # which finds no valley

# 4. The other targets, then the other baselines.
cells other-targets "$satellite" "aid ucm" 3 erm efdmix ld-efdmix
cells $own "$satellite" dubai 4 erm++ miro coral fact sagm mixup groupdro

# 5. Equal strength: per-label mixing without localization, and whole images mixed less often. Then all seeds.
cells $own "$satellite" dubai 4 $extra/ld-efdmix-uniform.yaml $extra/efdmix-matched.yaml ld-efdmix-probe
cells $own "$satellite" dubai 8 $extra/ld-efdmix-uniform.yaml # four more seeds, decided when two of the first were known
cells $own "$satellite" dubai 4 $extra/efdmix-crossdomain.yaml
cells $own "$satellite" dubai 8 mixstyle ld-mixstyle
cells other-targets "$satellite" "aid ucm" 4 erm efdmix ld-efdmix

# 6. The same claims with settings searched on the sources.
global="style.operator.alpha style.gate_prob"
decoupled="$global style.operator.top_ratio"
# shellcheck disable=SC2086
{
	search "ucm aid" efdmix $global
	search "ucm aid" ld-efdmix $decoupled
	search "ucm aid" mixstyle $global
	search "ucm aid" ld-mixstyle $global
}
searched=(--selected "$results/search")
copy_records searched s3 0-7 "erm|swad" # which have nothing to search
cells searched "$satellite" dubai 8 erm efdmix ld-efdmix swad ld-efdmix+swad "${searched[@]}"
cells searched "$satellite" dubai 8 mixstyle ld-mixstyle "${searched[@]}"

# 7. The rest with settings of their files: CSU, the low-altitude target, Table 3 of the paper as printed, cached attention.
cells $own "$satellite" dubai 4 csu ld-csu
cells drone "ucm aid drone" drone 4 erm efdmix ld-efdmix
copy_records table3 s3 0-7 "erm|efdmix"
cells table3 "$satellite" dubai 8 ld-efdmix-gc --selected paper \
	--set style.warmup_epochs=1 style.attention.refresh_every=2
cells $own "$satellite" dubai 4 ld-efdmix-gc

# 8. The other rows on dubai, searched: uniform maps, which led the first part, then the baselines.
# shellcheck disable=SC2086
search "ucm aid" $extra/ld-efdmix-uniform.yaml $global
cells searched "$satellite" dubai 8 $extra/ld-efdmix-uniform.yaml "${searched[@]}"
baseline() { # method, parameters
	search "ucm aid" "$@"
	cells searched "$satellite" dubai 4 "$1" "${searched[@]}"
}
baseline groupdro algorithm.step_size
baseline erm++ algorithm.head_ratio algorithm.average_ratio
baseline mixup algorithm.alpha
baseline coral algorithm.weight
baseline fact algorithm.strength algorithm.gate_prob
baseline miro algorithm.weight
baseline sagm algorithm.radius algorithm.alpha
baseline csu style.operator.strength style.gate_prob
baseline ld-csu style.operator.strength style.gate_prob
# shellcheck disable=SC2086
{
	baseline ld-efdmix-gc $decoupled
	baseline ld-efdmix-probe $decoupled
}

# 9. The other targets, searched.
for target in aid ucm; do
	[ $target = aid ] && sources="ucm dubai" || sources="aid dubai"
	# shellcheck disable=SC2086
	{
		search "$sources" efdmix $global
		search "$sources" ld-efdmix $decoupled
	}
done
copy_records searched-targets "s[12]" 0-3 erm
cells searched-targets "$satellite" "aid ucm" 4 erm efdmix ld-efdmix "${searched[@]}"

# 10. The cost of a step of every method, relative to plain training: on a machine that does nothing else.
python benchmarks/methods.py "$results/$own" --data "$data" --cache "$cache"
