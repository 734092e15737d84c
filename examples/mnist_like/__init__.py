"""Handwritten digits: logistic regression and a multilayer perceptron, written by hand and trained by compiled steps.

    python -m examples.mnist_like                    # or: make demo-train

networks.py   both networks as graphs, operator by operator, with their loss; no gradient is written by hand
learners.py   the same training in Tilewright, eager PyTorch and JAX: the same weights, batches and formulas
digits.py     scikit-learn's 1,797 digits of 8x8 pixels
view.py       the terminal while they learn
"""
