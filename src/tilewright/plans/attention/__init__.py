"""Plans of attention and its gradient: register tiles over packed keys and values, with estimates of their sizes."""
