"""The rules by theme; importing a module registers its rules."""
