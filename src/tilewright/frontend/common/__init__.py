"""Helpers that all frontends share: emitting operators, arithmetic of shapes, layers that several formats have, and the
last steps of an import."""
