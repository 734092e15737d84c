"""PPO with actor processes on one weight store: `make demo-rl`, or `python -m examples.ppo_actors --help`.

Read in this order: `config.py` (what is run), `policies.py` (the actor's two ways of running the policy: attached to a
store, or eager PyTorch), `actor.py` (the process that plays), `learner.py` (the network and PPO, ordinary PyTorch),
`fleet.py` (starts actors, notices deaths), `trajectories.py` (the shared memory that experience travels through),
`__main__.py` (wires it up). `environments.py`, `display.py` and `plot.py` are what their names say.

Only `learner.py` and the eager policy import PyTorch; actors on a store never do.
"""
