"""The parts that the frontends share: emitting operators, shape arithmetic, layers that several formats have, the
end."""
