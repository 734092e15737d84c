"""Weight files, quantised or not (GGUF; safetensors of AWQ, GPTQ and bitsandbytes), and how they replace a model's
weights."""
