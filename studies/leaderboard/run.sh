#!/usr/bin/env bash
# Every search and cell of the leaderboard, in order of importance. What is done is skipped, so stop it and start it
# again at will. DATA has ucm, aid, dubai and drone; RESULTS, CACHE and WORKERS may be set too.
set -euo pipefail
data=${DATA:?set DATA to the folder of ucm, aid, dubai and drone}
results=${RESULTS:-results/leaderboard}
cache=${CACHE:-$HOME/.cache/ldstyle}
workers=${WORKERS:-2}
ldstyle=${LDSTYLE:-ldstyle}

search() { # sources, method, parameters
	local sources=$1 method=$2
	shift 2
	# shellcheck disable=SC2086
	$ldstyle search --method "$method" --sources $sources --data "$data" --preset study --set optimizer.epochs=3 \
		--shared-trials 0 --trials 8 --parameters "$@" --workers "$workers" --cache "$cache" \
		--out "$results/search/study-${sources// /+}"
}

cells() { # domains, target, seeds, methods
	local domains=$1 target=$2 seeds=$3
	shift 3
	local selected=()
	[ ! -d "$results/search" ] || selected=(--selected "$results/search")
	# shellcheck disable=SC2086
	$ldstyle bench run --data "$data" --domains $domains --splits "$target" --seeds "$seeds" --preset study \
		--methods "$@" "${selected[@]}" --results "$results/${domains// /-}" --workers "$workers" \
		--cache "$cache"
}

own() { # folder, targets, seeds, methods: with the settings of the method files
	local folder=$1 targets=$2 seeds=$3
	shift 3
	# shellcheck disable=SC2086
	$ldstyle bench run --data "$data" --domains $satellite --splits $targets --seeds "$seeds" --preset study \
		--methods "$@" --results "$results/$folder" --workers "$workers" --cache "$cache"
}

scenes() { # seeds, methods
	local seeds=$1
	shift
	$ldstyle bench run --data synthetic --splits all --seeds "$seeds" --preset demo --methods "$@" \
		--results "$results/synthetic" --workers "$workers" --cache "$cache"
}

satellite="ucm aid dubai"
global="style.operator.alpha style.gate_prob"
decoupled="style.operator.alpha style.gate_prob style.operator.top_ratio"

# 1. UCM + AID -> dubai, every method with the settings of its file: the rows of the claims.
own own-settings dubai 8 erm efdmix ld-efdmix
own own-settings dubai 4 swad ld-efdmix+swad

# 2. Perfect localization: synthetic scenes with their masks.
scenes 4 erm efdmix ld-efdmix ld-efdmix-masks studies/leaderboard/ld-efdmix-uniform.yaml

# 3. The other rows of the claims.
own own-settings dubai 4 mixstyle ld-mixstyle
own own-settings dubai 8 swad ld-efdmix+swad

# 4. The other targets, then the other baselines.
own other-targets "aid ucm" 3 erm efdmix ld-efdmix
own own-settings dubai 4 erm++ miro coral fact sagm mixup groupdro
own other-targets "aid ucm" 4 erm efdmix ld-efdmix
own own-settings dubai 8 mixstyle ld-mixstyle

# 5. Equal strength: per-label mixing without localization, and whole images mixed less often.
own own-settings dubai 4 studies/leaderboard/ld-efdmix-uniform.yaml studies/leaderboard/efdmix-matched.yaml ld-efdmix-probe csu ld-csu

# 6. The same claims with settings searched on the sources.
# shellcheck disable=SC2086
{
	search "ucm aid" efdmix $global
	search "ucm aid" ld-efdmix $decoupled
	search "ucm aid" mixstyle $global
	search "ucm aid" ld-mixstyle $global
}
cells "$satellite" dubai 8 erm efdmix ld-efdmix mixstyle ld-mixstyle swad ld-efdmix+swad ld-mixstyle+swad

# 7. The other rows on dubai, searched.
# shellcheck disable=SC2086
{
	search "ucm aid" csu style.operator.strength style.gate_prob
	search "ucm aid" ld-csu style.operator.strength style.gate_prob
	search "ucm aid" ld-efdmix-gc $decoupled
	search "ucm aid" ld-efdmix-probe $decoupled
}
search "ucm aid" fact algorithm.strength algorithm.gate_prob
search "ucm aid" mixup algorithm.alpha
search "ucm aid" coral algorithm.weight
search "ucm aid" miro algorithm.weight
search "ucm aid" groupdro algorithm.step_size
search "ucm aid" sagm algorithm.radius algorithm.alpha
search "ucm aid" erm++ algorithm.head_ratio algorithm.average_ratio
cells "$satellite" dubai 4 csu ld-csu ld-efdmix-gc ld-efdmix-probe fact mixup coral miro groupdro sagm erm++

# 8. Table 3 of the paper as printed, with warm-up and refresh of the preset.
# shellcheck disable=SC2086
$ldstyle bench run --data "$data" --domains $satellite --splits all --seeds 4 --preset study --results "$results/table3" \
	--methods ld-efdmix-gc --selected paper --set style.warmup_epochs=1 style.attention.refresh_every=2 \
	--workers "$workers" --cache "$cache"

# 9. The other targets, searched.
for target in aid ucm; do
	[ $target = aid ] && sources="ucm dubai" || sources="aid dubai"
	# shellcheck disable=SC2086
	{
		search "$sources" efdmix $global
		search "$sources" ld-efdmix $decoupled
		search "$sources" mixstyle $global
		search "$sources" ld-mixstyle $global
	}
	cells "$satellite" $target 4 erm swad efdmix ld-efdmix mixstyle ld-mixstyle ld-efdmix+swad ld-mixstyle+swad
done
cells "ucm aid drone" drone 4 erm swad efdmix ld-efdmix mixstyle ld-mixstyle
