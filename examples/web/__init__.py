"""Two web pages whose networks run in the browser: one reads digits that are drawn, one catches a ball.

    python -m examples.web                    # or: make web; trains both networks, writes build/web
    python -m examples.web --serve 8000       # and shows it at http://localhost:8000

digits.py     scikit-learn's digits, learned by compiled steps (`examples/mnist_like`), as an ONNX model
catch.py      the game, its frames, and the network of Mnih et al. (2015), which learns to follow the ball
site.py       both as bundles of WebAssembly beside the pages
pages/        HTML and JavaScript: nothing but the bundles and the browser
"""
