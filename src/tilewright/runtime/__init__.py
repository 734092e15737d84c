"""The runtime of compiled programs: loading, calling, live weights, artifacts. It never imports the compiler."""
