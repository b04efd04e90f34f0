"""Using a trained model: prediction, explanation, export, and maps of whole scenes."""
