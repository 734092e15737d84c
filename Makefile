# `make test` is the one command that says whether the tree is sound; `make help` lists the others.

PYTHON ?= python3
VENV   ?= .venv
TORCH  ?= torch==2.13.0 onnxscript transformers expecttest

BIN    := $(VENV)/bin
PY     := $(BIN)/python
STAMP  := $(VENV)/.stamp-test
TORCH_STAMP := $(VENV)/.stamp-torch
PEERS_STAMP := $(VENV)/.stamp-peers
JAX_STAMP := $(VENV)/.stamp-jax
RL_STAMP := $(VENV)/.stamp-rl
DEMO_STAMP := $(VENV)/.stamp-demo
TREES_STAMP := $(VENV)/.stamp-trees
ZOO_STAMP := $(VENV)/.stamp-zoo
NEWEST_ENV := build/newest-env
NEWEST_STAMP := $(NEWEST_ENV)/.stamp
NEWEST_PYTHON ?= python3.13
NEWEST ?= torch==2.14.1 onnxscript transformers expecttest absl-py
LLEAVES_ENV := build/peers/lleaves-env
LLEAVES_STAMP := $(LLEAVES_ENV)/.stamp
LITERT_ENV := build/peers/litert-env
NNCF_ENV := build/peers/nncf-env
SERVE_ENV := build/serve-env
SERVE_STAMP := $(SERVE_ENV)/.stamp
TVM_ENV := build/peers/tvm-env
TVM_STAMP := $(TVM_ENV)/.stamp

export PYTHONPATH := src:$(PYTHONPATH)
# Tests and benchmarks start many processes: let the first one keep the bytecode, wherever that is switched off.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help demo demo-rl demo-train rl test test-all lint types layers pytest test-v3 torch torch-ops jax onnx bench bench-layers bench-models tune-tvm bench-threads bench-memory audit bench-choice bench-tune bench-live bench-broker bench-rl bytes bars trees bench-trees bench-train bench-trained bench-training bench-decode ulp mutate fuzz live-stress format clean

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

# The environment. It is made once and brought up to date when pyproject.toml changes.
$(PY):
	$(PYTHON) -m venv $(VENV)

$(STAMP): pyproject.toml | $(PY)
	$(BIN)/pip install --quiet -e '.[test]'
	$(PY) -m compileall -q src # an import without bytecode takes three times as long
	@touch $@

$(TORCH_STAMP): | $(STAMP)
	$(BIN)/pip install --quiet $(TORCH)
	@touch $@

$(JAX_STAMP): pyproject.toml | $(STAMP)
	$(BIN)/pip install --quiet -e '.[jax,iree]' absl-py
	@touch $@

$(PEERS_STAMP): pyproject.toml | $(TORCH_STAMP)
	$(BIN)/pip install --quiet -e '.[peers]'
	@touch $@

$(DEMO_STAMP): pyproject.toml | $(TORCH_STAMP)
	$(BIN)/pip install --quiet -e '.[demo]'
	@touch $@

$(RL_STAMP): pyproject.toml | $(TORCH_STAMP)
	$(BIN)/pip install --quiet -e '.[rl]'
	@touch $@

# lleaves needs an older llvmlite, so it has an environment of its own.
$(LLEAVES_STAMP): | $(PY)
	$(PYTHON) -m venv $(LLEAVES_ENV)
	$(LLEAVES_ENV)/bin/pip install --quiet lleaves==1.3.0 llvmlite==0.43.0 lightgbm
	@touch $@

$(TREES_STAMP): pyproject.toml | $(STAMP)
	$(BIN)/pip install --quiet -e '.[trees]'
	@touch $@

$(ZOO_STAMP): pyproject.toml | $(TORCH_STAMP)
	$(BIN)/pip install --quiet -e '.[zoo]' $(firstword $(TORCH))
	@touch $@

# The newest releases of what we plug into, on a newer Python, have an environment of their own.
$(NEWEST_STAMP): pyproject.toml
	$(NEWEST_PYTHON) -m venv $(NEWEST_ENV)
	$(NEWEST_ENV)/bin/pip install --quiet --upgrade --upgrade-strategy eager -e '.[test,rl,jax]' $(NEWEST)
	@touch $@

# Their protocol buffers are of another release than ours, and KServe's client brings a web framework.
$(SERVE_STAMP): | $(PY)
	$(PYTHON) -m venv $(SERVE_ENV)
	$(SERVE_ENV)/bin/pip install --quiet 'tritonclient[http,grpc]' ml_dtypes open-inference-grpc open-inference-openapi kserve kubernetes-validate schemathesis
	@touch $@

# TVM's tuner crashes with the apache-tvm-ffi that Tilewright uses, so it has an environment of its own.
$(TVM_STAMP): | $(PY)
	$(PYTHON) -m venv $(TVM_ENV)
	$(TVM_ENV)/bin/pip install --quiet apache-tvm==0.27.0.post1 apache-tvm-ffi==0.1.14.post0 ml_dtypes numpy onnx psutil cloudpickle xgboost-cpu
	@touch $@

.PHONY: litert-env
litert-env: ## LiteRT's converter and runtime for `python -m benchmarks.bench_zoo_peers --litert`, in an environment of their own
	$(PYTHON) -m venv $(LITERT_ENV)
	$(LITERT_ENV)/bin/pip install --quiet ai-edge-litert==2.3.0 litert-torch==0.10.0 torch==2.13.0 torchvision==0.28.0 timm transformers

.PHONY: nncf-env
nncf-env: ## OpenVINO's quantiser for `python -m benchmarks.bench_quantize_peers`, in an environment of its own
	$(PYTHON) -m venv $(NNCF_ENV)
	$(NNCF_ENV)/bin/pip install --quiet nncf==3.4.0 openvino==2026.4.1 onnx

.PHONY: tflite
tflite: $(STAMP) ## TFLite models of three random seeds, and a million numbers rounded to codes, against LiteRT's reference kernels, bit for bit; needs `make litert-env`
	$(PY) -m tests.frontend.tflite.record --python $(LITERT_ENV)/bin/python --seeds 3

.PHONY: bench-policies
bench-policies: $(STAMP) $(TORCH_STAMP) $(RL_STAMP) ## returns of policies in fewer bits and compressed, by permutation test
	$(PY) -m benchmarks.bench_policies $(ARGS)

.PHONY: bench-auto
bench-auto: $(STAMP) ## `quantize(precision="auto")` on 60 small models: never slower than f32, never beyond max_drop
	$(PY) -m benchmarks.bench_auto $(ARGS)

demo: $(STAMP) ## compile and run four models, compare with ONNX Runtime
	$(PY) -m benchmarks.demo

demo-rl: $(STAMP) $(TORCH_STAMP) $(DEMO_STAMP) ## train PPO with actor processes on one weight store, against eager PyTorch; ARGS=--chaos kills actors
	$(PY) -m examples.ppo_actors --compare $(ARGS)

demo-train: $(STAMP) $(TORCH_STAMP) $(JAX_STAMP) $(DEMO_STAMP) ## learn handwritten digits by compiled steps, live, beside PyTorch and JAX; ARGS="--epochs 20"
	$(PY) -m examples.mnist_like $(ARGS)

# Types are checked beside the tests: mypy has one process.
test: lint layers ## format, lint, words, types, import layers, documents, tests
	$(MAKE) --no-print-directory -j 2 types pytest

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(PY) -m tests.words

types: $(STAMP)
	$(BIN)/mypy

layers: $(STAMP)
	$(BIN)/lint-imports

pytest: $(STAMP)
	$(PY) -m pytest -n auto --dist worksteal $(PYTEST_ARGS)

test-all: $(STAMP) ## the tests with all cases of those that are marked costly or daily
	$(PY) -m pytest -n auto --dist worksteal --all-cases $(PYTEST_ARGS)

# What runs code: results, not texts. The whole suite has run with the machine's own instructions.
NUMERIC := tests/plans tests/ops tests/codegen tests/transform tests/compiler tests/builder tests/models tests/quantization tests/train tests/runtime/test_*.py

test-v3: $(STAMP) ## the numeric tests with AVX2's vectors, on a machine with AVX-512 (on one without, `make test` has them)
	@case "$$($(PY) -c 'from tilewright.targets.target import Target; print(Target.on_host("host").vector_bits > 256)')" in \
	True) TILEWRIGHT_TARGET=x86-64-v3 $(PY) -m pytest -n auto --dist worksteal $(NUMERIC) $(PYTEST_ARGS) ;; \
	False) echo 'test-v3: left out, this machine has no wider vectors than x86-64-v3: make test runs what it runs' ;; \
	*) exit 1 ;; esac

.PHONY: test-machines
test-machines: $(STAMP) ## a share of the tests under four pretended machines, others each day; ARGS="--machines qemu,zen5 --share 3"
	$(PY) -m tests.machines $(ARGS)

torch: $(STAMP) $(TORCH_STAMP) ## what needs PyTorch: its tensors in and out, its modules, its exporters' models
	$(PY) -m pytest -n auto $(PYTEST_ARGS) tests/runtime/test_frameworks.py tests/builder/test_export_torch.py tests/train/test_torch_*.py tests/train/test_reduced.py tests/collective/test_torch_*.py tests/train/test_recompute.py tests/train/test_off_policy.py tests/ops/gradients/test_gradient.py tests/examples/test_compiled_ppo.py tests/examples/test_mnist_like.py tests/frontend/torch tests/frontend/test_torch_doors.py tests/dynamo tests/torch_opinfo tests/benchmarks/test_zoo.py tests/benchmarks/test_zoo_peers.py tests/benchmarks/test_transformers.py tests/benchmarks/test_audit.py tests/benchmarks/test_onnx_torch.py tests/fuzz/test_fx.py tests/fuzz/test_dynamo_forms.py tests/fuzz/test_narrow.py tests/fuzz/test_networks.py tests/fuzz/test_doors.py tests/fuzz/test_torch_guarded.py tests/functions/test_torch.py tests/quantization/test_torch_*.py tests/docs
	$(PY) -m benchmarks.bench_models --models resnet18 --rounds 5 --no-report

.PHONY: distributed
distributed: $(STAMP) $(TORCH_STAMP) ## PyTorch's own tests of torch.distributed on our backend; ARGS="--match all_reduce --ranks 4"
	$(PY) -m tests.collective.pytorch_suite $(ARGS)

.PHONY: engine
engine: $(STAMP) ## 10,000 random programs on the dependency engine, all interleavings of short ones, the time of a push; ARGS="--programs 1000"
	$(PY) -m tests.engine.run $(ARGS)

.PHONY: topologies
topologies: $(STAMP) ## the model's choice of an all-reduction against the fastest, on simulated networks of 8 to 1,024 ranks
	$(PY) -m tests.collective.topology.run

.PHONY: server
server: $(STAMP) ## 10,000 simulated schedules of the parameter server, and the time from a push to an actor
	$(PY) -m tests.collective.server.run

.PHONY: kills
kills: $(STAMP) ## 1,000 ranks killed in collective operations: no hang, no leak, an error on all others; ARGS="--count 100"
	$(PY) -m tests.collective.kills $(ARGS)

.PHONY: demo-distributed
demo-distributed: $(STAMP) $(TORCH_STAMP) ## examples of many processes: data-parallel digits, a parameter server with actors, a pipeline
	$(PY) -m examples.distributed

jax: $(STAMP) $(JAX_STAMP) ## what needs JAX: its functions, exports and StableHLO, and its own test cases; ARGS="--every 1"
	$(PY) -m pytest tests/frontend/stablehlo/test_jax*.py tests/train/test_jax_*.py tests/fuzz/test_stablehlo.py tests/fuzz/test_jax_functions.py tests/fuzz/test_jax_guarded.py tests/frontend/test_read.py tests/benchmarks/test_mlir_out.py tests/docs
	$(PY) -m tests.jax.run $(ARGS)

torch-ops: $(STAMP) $(TORCH_STAMP) ## PyTorch's list of its operators against eager, each refusal with its reason; ARGS="--update", ARGS="'fft.*' --dtypes f16"
	$(PY) -m tests.torch_opinfo.run $(ARGS)

torch-gradients: $(STAMP) $(TORCH_STAMP) ## gradients of PyTorch's operators against autograd, and the share that has one; ARGS="'linalg.*' --count 4"
	$(PY) -m tests.torch_opinfo.gradients $(ARGS)

# Not part of .ci/run: installing Ray, TorchRL and Stable-Baselines3 and training with them takes longer than is left there.
rl: $(STAMP) $(TORCH_STAMP) $(RL_STAMP) $(DEMO_STAMP) ## drop-ins for Stable-Baselines3, RLlib and TorchRL against the real libraries
	$(PY) -m pytest tests/rl $(PYTEST_ARGS)

# Ray's libraries run by themselves: RLlib sets flags of cuDNN, which PyTorch's own testing tools forbid once they are loaded.
.PHONY: newest
newest: $(NEWEST_STAMP) ## a share of the tests with the newest PyTorch, JAX, ONNX, transformers, Ray and Stable-Baselines3 on Python 3.13
	$(NEWEST_ENV)/bin/python -m pytest -n auto --dist worksteal --one-of 4 $(PYTEST_ARGS) tests/runtime tests/onnxruntime tests/frontend tests/dynamo tests/onnx/test_runner.py tests/train/test_torch_*.py tests/train/test_jax_*.py
	$(NEWEST_ENV)/bin/python -m pytest --one-of 3 $(PYTEST_ARGS) tests/rl

onnx: $(STAMP) ## ONNX's own backend tests and real models, each skip with its reason
	$(PY) -m tests.onnx.run

.PHONY: onnx-releases
onnx-releases: $(STAMP) ## the node tests of every ONNX release since 1.5, each that does not pass with its reason; ARGS="-k 'test_resize*'"
	$(PY) -m tests.onnx.releases $(ARGS)

.PHONY: ort-sessions ort-releases ort-own
ort-sessions: $(STAMP) ## 10,000 sessions on the execution provider, opened and closed: nothing may stay of them; ARGS="--count 1000"
	$(PY) -m tests.ort.sessions $(ARGS)

ort-releases: $(STAMP) ## the execution provider's tests with every release of ONNX Runtime that it says it is tested with
	$(PYTHON) -m venv build/ort-env
	build/ort-env/bin/pip install --quiet -e '.[test]'
	for release in $$($(PY) -c 'import tilewright.ort; print(*tilewright.ort.TESTED)'); do \
	  build/ort-env/bin/pip install --quiet "onnxruntime==$$release.*" && build/ort-env/bin/python -m pytest $(PYTEST_ARGS) tests/ort || exit 1; \
	done

ort-own: $(STAMP) ## ONNX Runtime's own tests of sessions on tw.Session; ARGS=.../onnxruntime/test/python/onnxruntime_test_python.py
	$(PY) -m tests.onnxruntime.own $(ARGS)

.PHONY: bench-ort
bench-ort: $(STAMP) ## models in ONNX Runtime's sessions on our provider against the same alone; ARGS="--models m64,az6"
	$(PY) -m benchmarks.bench_ort --write $(ARGS)

# Options go into ARGS, such as ARGS="--groups 'conv3x3*' --rounds 20"; --help lists them.
ulp: $(STAMP) ## errors of exp, tanh, ... over all 2^32 arguments of float32 against the stated bounds
	$(PY) -m tests.transform.math.ulp

bench: $(STAMP) $(TORCH_STAMP) $(PEERS_STAMP) ## all benchmarks side by side with the peers
	$(PY) -m benchmarks

bench-layers: $(STAMP) $(TORCH_STAMP) $(PEERS_STAMP) ## single layers and blocks against the peers
	$(PY) -m benchmarks.bench_layers $(ARGS)

bench-models: $(STAMP) $(TORCH_STAMP) $(PEERS_STAMP) ## whole models against the peers
	$(PY) -m benchmarks.bench_models $(ARGS)

tune-tvm: $(STAMP) $(PEERS_STAMP) $(TVM_STAMP) ## tune TVM as a peer, minutes a model; ARGS="--models m64"
	$(PY) -m benchmarks.peers.tvm $(ARGS)

bench-threads: $(STAMP) $(TORCH_STAMP) ## two threads against one
	$(PY) -m benchmarks.bench_threads $(ARGS)

bench-memory: $(STAMP) ## arenas against their lower bounds, weights, peaks
	$(PY) -m benchmarks.bench_memory $(ARGS)

audit: $(STAMP) ## estimates against the clock on random layers; ARGS="--count 2000 --target x86-64-v3 --peer", ARGS="compile --seconds 600"
	$(PY) -m benchmarks.bench_audit $(ARGS)

.PHONY: bench-random-peers
bench-random-peers: $(STAMP) $(PEERS_STAMP) ## random layers against ONNX Runtime and OpenVINO; ARGS="--count 1500 --seed 5 --write"
	$(PY) -m benchmarks.bench_random_peers $(ARGS)

.PHONY: bench-jax
bench-jax: $(STAMP) $(JAX_STAMP) ## networks in plain JAX against the same as ONNX models; ARGS="--only 'gru scan' --write"
	$(PY) -m benchmarks.bench_jax $(ARGS)

.PHONY: bench-cliffs
bench-cliffs: $(STAMP) $(TORCH_STAMP) ## layers that networks lean on against eager PyTorch; ARGS="--only lstm sort"
	$(PY) -m benchmarks.bench_cliffs $(ARGS)

.PHONY: zoo
zoo: $(STAMP) $(TORCH_STAMP) $(ZOO_STAMP) ## architectures of many libraries: right, compile time, against eager PyTorch; ARGS="--only timm --rows FILE"
	$(PY) -m benchmarks.bench_zoo $(ARGS)

.PHONY: transformers
transformers: $(STAMP) $(TORCH_STAMP) ## architectures of transformers with every axis open, as modules and by both ONNX exporters: whole, right at five sizes; ARGS="--only Bert --doors dynamo"
	$(PY) -m benchmarks.bench_transformers $(ARGS)

# Where there is no apt-get, or no right to install, a Chromium that is there is used.
.PHONY: web
web: $(STAMP) ## two pages with networks in a headless Chromium: digits that are drawn, a game; the pages are written to build/web
	-command -v chromium || apt-get install -y --no-install-recommends chromium nodejs
	$(BIN)/pip install --quiet scikit-learn
	$(PY) -m examples.web $(ARGS)
	TILEWRIGHT_WEB=1 $(PY) -m pytest tests/examples/test_web.py $(PYTEST_ARGS)

.PHONY: bundles
bundles: $(STAMP) $(TORCH_STAMP) ## bundles of fifteen models, built with sanitizers, against the Python runtime bit by bit
	TILEWRIGHT_BUNDLES=1 $(PY) -m pytest tests/bundle $(PYTEST_ARGS)

# Where there is no apt-get, or no right to install, the tests run that find what they need.
.PHONY: targets
targets: $(STAMP) ## bundles of models, and tests of operators and plans, for Arm, RISC-V, WebAssembly and microcontrollers in emulators; ARGS="--machines node --share 3"
	-apt-get install -y --no-install-recommends qemu-user-static qemu-system-arm lld nodejs rustc gcc-aarch64-linux-gnu libc6-dev-arm64-cross gcc-riscv64-linux-gnu libc6-dev-riscv64-cross gcc-arm-none-eabi libnewlib-arm-none-eabi
	$(BIN)/pip install --quiet wasmtime
	TILEWRIGHT_TARGETS=1 $(PY) -m pytest tests/bundle/test_elsewhere.py $(PYTEST_ARGS)
	$(PY) -m tests.emulated $(ARGS)

.PHONY: arm-python
arm-python: $(STAMP) ## compiler, runtime, threads and weight stores in a Python for Arm, which qemu runs; unpacked into build/arm-python
	-apt-get install -y --no-install-recommends qemu-user-static
	$(PY) -m tests.emulated.arm_python $(ARGS)

.PHONY: wheel
wheel: $(STAMP) ## the wheel as it is published, in build/wheel; fails where it has more than 3,000,000 bytes
	$(BIN)/pip install --quiet zopfli
	$(PY) -m tests.wheel

EMX_ENV := build/peers/emx-env
.PHONY: bench-bundle
bench-bundle: $(STAMP) $(TORCH_STAMP) ## bundles against the Python runtime and emx-onnx-cgen's C; ARGS="--models m64 nat --write"
	test -d $(EMX_ENV) || $(PYTHON) -m venv $(EMX_ENV)
	$(EMX_ENV)/bin/pip install --quiet emx-onnx-cgen==1.4.0
	$(PY) -m benchmarks.bench_bundle --emx $(EMX_ENV)/bin/python $(ARGS)

.PHONY: bench-web
bench-web: $(STAMP) $(TORCH_STAMP) ## bundles of WebAssembly against onnxruntime-web in Node; ARGS="--models nat --write"
	$(PY) -m benchmarks.bench_web $(ARGS)

.PHONY: bench-control
bench-control: $(STAMP) ## a recurrence as Scan, greedy decoding as Loop, a detector with its suppression, against ONNX Runtime
	$(PY) -m benchmarks.bench_control $(ARGS)

.PHONY: bench-dynamic
bench-dynamic: $(STAMP) ## one compile for all shapes against a compile for each
	$(PY) -m benchmarks.bench_dynamic $(ARGS)

.PHONY: bench-dynamic-zoo
bench-dynamic-zoo: $(TORCH_STAMP) $(ZOO_STAMP) ## image networks of any size against a compile for each size; ARGS="--only ghostnet"
	$(PY) -m benchmarks.bench_dynamic_zoo $(ARGS)

.PHONY: bench-symbolic-layers
bench-symbolic-layers: $(STAMP) ## single layers with symbols of random ranges against a compile for each size; ARGS="--count 20 --rows"
	$(PY) -m benchmarks.bench_symbolic_layers $(ARGS)

.PHONY: bench-ragged
bench-ragged: $(STAMP) ## packed sequences of different lengths against padded ones
	$(PY) -m benchmarks.bench_ragged $(ARGS)

.PHONY: bench-dynamic-peers
bench-dynamic-peers: $(PEERS_STAMP) ## the same traces of sizes against ONNX Runtime, OpenVINO and Inductor; ARGS="--static 3" for peers of one size
	$(PY) -m benchmarks.bench_dynamic_peers $(ARGS)

bench-choice: $(STAMP) ## the untuned choice of tiles and algorithms against the best of all
	$(PY) -m benchmarks.bench_choice $(ARGS)

bench-tune: $(STAMP) ## what tuning gains and what there is to gain; ARGS="--models m64 nat --everything --ceilings --threads 2"
	$(PY) -m benchmarks.bench_tune $(ARGS)

# Not part of .ci/run: installing the libraries and training with them takes longer than is left there.
trees: $(STAMP) $(TREES_STAMP) ## tree ensembles: 200 random ones, and those of scikit-learn, LightGBM, XGBoost
	TREE_EXAMPLES=200 $(PY) -m pytest tests/frontend/common/test_trees.py tests/frontend/common/test_trees_libraries.py

bench-trees: $(STAMP) $(TREES_STAMP) $(LLEAVES_STAMP) ## tree ensembles against ONNX Runtime, lleaves and LightGBM
	$(PY) -m benchmarks.bench_trees $(ARGS)

bench-decode: $(PEERS_STAMP) ## decoding with caches that stay, against ONNX Runtime and OpenVINO
	$(PY) -m benchmarks.bench_decode $(ARGS)

bench-train: $(STAMP) $(TORCH_STAMP) $(JAX_STAMP) ## updates of PPO, SAC and TD3 against PyTorch's eager mode and JAX
	$(PY) -m benchmarks.bench_train $(ARGS)

bench-training: $(STAMP) $(TORCH_STAMP) $(JAX_STAMP) ## steps of training whole networks against PyTorch, Inductor and JAX; ARGS="--cases az6@64"
	$(PY) -m benchmarks.bench_training $(ARGS)

bench-trained: $(STAMP) $(TORCH_STAMP) $(DEMO_STAMP) ## models trained here in fewer bits and compressed: accuracy and bytes
	$(PY) -m benchmarks.bench_trained $(ARGS)

bench-live: $(STAMP) ## live weights: publishing, latency, sharing, memory, attaching
	$(PY) -m benchmarks.bench_live $(ARGS)

bench-broker: $(STAMP) ## agents batched through a broker against an actor each
	$(PY) -m benchmarks.bench_broker $(ARGS)

bench-rl: $(STAMP) $(TORCH_STAMP) $(RL_STAMP) ## Stable-Baselines3 and RLlib with and without Tilewright: inference, learning curves, updates
	$(PY) -m benchmarks.bench_rl $(ARGS)
	$(PY) -m benchmarks.bench_rl_updates
	$(PY) -m benchmarks.bench_rllib

bytes: $(STAMP) $(TORCH_STAMP) ## whether code and graphs are as they were; ARGS="--against main --quick", ARGS="--against main --graphs" in seconds
	$(PY) -m benchmarks.bytes $(ARGS)

bars: $(STAMP) ## which of the required figures the last results reach
	$(PY) -m benchmarks.bars

.PHONY: grids
grids: $(STAMP) ## schedules of a GPU's threads, barriers and shared memory against NumPy, each barrier taken out; COUNT=500
	$(PY) -m tests.codegen.interpret.test_grid $(or $(COUNT),500)

.PHONY: vta
vta: $(STAMP) ## the accelerator VTA: layers of ResNet-18 exact, with cycles; random programs, each token taken out; ARGS="--programs 100"
	$(PY) -m tests.codegen.vta.run
	$(PY) -m tests.targets.vta.run $(ARGS)

.PHONY: gpu
GPU_ENV := build/gpu-env
GPU_STAMP := $(GPU_ENV)/.stamp
$(GPU_STAMP):
	$(PYTHON) -m venv $(GPU_ENV)
	$(GPU_ENV)/bin/pip install --quiet nvidia-cuda-nvcc==13.0.88 nvidia-cuda-nvdisasm
	@touch $@

gpu: $(STAMP) $(JAX_STAMP) $(GPU_STAMP) ## kernels for NVIDIA through ptxas, without a GPU: registers, spills, instructions for matrices; ARGS="--models m64,nat"
	$(PY) -m tests.codegen.ptx.run --ptxas $(GPU_ENV) $(ARGS)

.PHONY: bench-amx bench-gpu
bench-amx: $(STAMP) ## what a machine with AMX has to show, in some minutes; ARGS="--only products,bert", ARGS="--dry-run" anywhere
	$(PY) -m benchmarks.bench_amx $(ARGS)

bench-gpu: $(STAMP) ## all bars of GPUs, in at most 8 minutes, on a machine with one; ARGS="--only smoke,copy"
	$(PY) -m benchmarks.bench_gpu $(ARGS)

mutate: $(STAMP) ## whether tests notice wrong lines: sampled mutants by room; ARGS="--rooms arith,ir --count 50 --seed 1"
	$(PY) -m tests.mutate $(ARGS)

.PHONY: split-values
split-values: $(STAMP) ## 10^5 random products by pieces with NaN, infinities, 3e38, denormals, zeros anywhere, AMX emulated; ARGS="--seed 1"
	$(PY) -m tests.fuzz.split_values $(ARGS)

.PHONY: guarded
guarded: $(STAMP) $(TORCH_STAMP) $(JAX_STAMP) ## random programs of open sizes by every door between pages that nobody may touch; ARGS="--door te --seed 5"
	$(PY) -m tests.fuzz.guarded --calls 100000 $(ARGS)

fuzz: $(STAMP) $(TORCH_STAMP) $(JAX_STAMP) ## long random runs: schedules, parsers, importers
	TILEWRIGHT_FUZZ=1 $(PY) -m pytest tests/fuzz tests/laws tests/plans/framework/test_restate.py

live-stress: $(STAMP) ## the weight store: 2,000 kills, 10^5 publishes, damaged files; takes minutes
	TILEWRIGHT_FUZZ=1 $(PY) -m pytest tests/live/store $(PYTEST_ARGS)

.PHONY: tune-stress
tune-stress: $(STAMP) ## records: 32 processes of 1,000, 200 kills while writing, all damaged files; 200 kills while tuning; takes minutes
	TILEWRIGHT_FUZZ=1 $(PY) -m pytest tests/records tests/fuzz/test_records.py $(PYTEST_ARGS)
	TILEWRIGHT_KILLS=200 $(PY) -m pytest tests/tuning/test_killed.py

.PHONY: bench-comprehension
bench-comprehension: $(PEERS_STAMP) ## functions without a plan against naive C, opt_einsum, PyTorch, Inductor; ARGS="--count 10"
	$(PY) -m benchmarks.bench_comprehension $(ARGS)

.PHONY: bench-sketches
bench-sketches: $(STAMP) ## schedules by rules against the plans that they stand in for; ARGS="--tune --cases 'product 64'"
	$(PY) -m benchmarks.bench_sketches $(ARGS)

.PHONY: bench-records
bench-records: $(STAMP) ## tuning records: lookups, an import of many, compiles with and without
	$(PY) -m benchmarks.bench_records $(ARGS)

.PHONY: demo-serve
demo-serve: $(STAMP) ## two models behind one server, a burst, weights that change, live in the terminal; ARGS="--seconds 10"
	$(PY) -m examples.serving_demo $(ARGS)

.PHONY: serve-ray
serve-ray: $(STAMP) $(RL_STAMP) ## a deployment of Ray Serve: one copy of the weights for two replicas, a learner's store, autoscaling
	$(BIN)/pip install --quiet 'ray[serve]'
	$(PY) -m tests.serve.ray_serve

.PHONY: serve
serve: $(STAMP) $(SERVE_STAMP) ## the inference server against other people's clients (Triton's, KServe's, curl), 10^4 cases of schemathesis, and 10^5 hostile requests
	$(PY) -m tests.serve.clients.run $(SERVE_ENV)/bin/python $(ARGS)
	$(PY) -m tests.serve.hostile --count 100000
	$(PY) -m tests.serve.hostile_grpc --count 20000
	-command -v chromium || apt-get install -y --no-install-recommends chromium
	TILEWRIGHT_BROWSER=1 $(PY) -m pytest tests/serve/test_dashboard_browser.py

# Where there is no apt-get, or no right to install, what is there is used; each part that is missing says so.
.PHONY: farm
farm: $(STAMP) $(RL_STAMP) ## the tuning service: 200 kills on SQLite and on Postgres, 10^5 hostile inputs, Ray, the dashboard in Chromium
	-command -v chromium || apt-get install -y --no-install-recommends chromium
	-test -d /usr/lib/postgresql || apt-get install -y --no-install-recommends postgresql
	TILEWRIGHT_POSTGRES=1 TILEWRIGHT_BROWSER=1 $(PY) -m pytest $(PYTEST_ARGS) tests/farm
	$(PY) -m tests.farm.kills
	$(PY) -m tests.farm.kills --postgres
	$(PY) -m tests.farm.hostile
	$(PY) -m tests.farm.ray_run

.PHONY: demo-farm
demo-farm: $(STAMP) ## a model is collected, tuned, tried as a canary and released; a bad record goes back; ARGS="--model m64 --seconds 20"
	$(PY) -m examples.farm_demo $(ARGS)

.PHONY: bench-farm
bench-farm: $(STAMP) $(RL_STAMP) ## the tuning service against its bars; ARGS="scale --records 100000"
	$(PY) -m benchmarks.bench_farm --ray $(ARGS)

.PHONY: bench-serve
bench-serve: $(STAMP) ## the inference server against its bars; ARGS="latency --spin 0.001", ARGS="soak --requests 1000000 --versions 1000"
	$(PY) -m benchmarks.bench_serve $(ARGS)

# Each has an environment of its own, as their protocol buffers differ. The Python of pytriton's back end is 3.11.2 or older.
SERVE_PEERS := build/peers/serve
PYTRITON_PYTHON ?= /usr/bin/python3
.PHONY: bench-serve-peers
bench-serve-peers: $(STAMP) ## goodput under a promise against MLServer, Ray Serve and tritonserver (by pytriton's wheel), in turns
	for peer in mlserver 'ray[serve]' nvidia-pytriton; do \
		name=$${peer%%[*}; python=$(PYTHON); [ $$name = nvidia-pytriton ] && python=$(PYTRITON_PYTHON); \
		test -d $(SERVE_PEERS)/$$name || $$python -m venv $(SERVE_PEERS)/$$name; \
		$(SERVE_PEERS)/$$name/bin/pip install --quiet "$$peer" onnxruntime; done
	$(PY) -m benchmarks.bench_serve peers --mlserver $(SERVE_PEERS)/mlserver --ray $(SERVE_PEERS)/ray --pytriton $(SERVE_PEERS)/nvidia-pytriton $(ARGS)

.PHONY: serve-protocol
serve-protocol: ## Python of the messages of the Open Inference Protocol, written by protoc (pip install grpcio-tools)
	$(PY) -m grpc_tools.protoc -I src --python_out=src src/tilewright/serve/protocol/generated/inference.proto
	sed -i '/^_runtime_version.Validate/,/^)/d; /runtime_version as/d; /^# Protobuf Python Version/d' src/tilewright/serve/protocol/generated/inference_pb2.py

LESSONS = example-matmul example-gemv example-reduction example-convolution example-attention \
	example-accelerator
.PHONY: $(LESSONS)
example-matmul: ## a 1024x1024x1024 matmul scheduled step by step (docs/course/matmul.md)
example-gemv: ## a matrix times a vector at the speed of memory, step by step (docs/course/gemv.md)
example-reduction: ## one sum of millions of numbers, step by step (docs/course/reduction.md)
example-convolution: ## a convolution, directly and by Winograd's algorithm, step by step (docs/course/convolution.md)
example-attention: ## attention without matrices of scores, step by step (docs/course/attention.md)
example-accelerator: ## a product on an accelerator that is described, step by step (docs/course/accelerator.md)
$(LESSONS): $(STAMP)
	$(PY) -m examples.course.$(@:example-%=%) $(ARGS)

format: $(STAMP) ## format and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean: ## remove build outputs (the environment stays)
	rm -rf build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis out
	find . -name __pycache__ -not -path './$(VENV)/*' -type d -prune -exec rm -rf {} +
