"""Files of weights, quantised or not: GGUF, safetensors of AWQ, GPTQ and bitsandbytes; put into a model's graph."""
