"""Models in fewer bits: `tw.quantize` calibrates a model of f32 and chooses a type for each layer."""
