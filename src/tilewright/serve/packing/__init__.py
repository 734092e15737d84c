"""Which models share a core so that each keeps its promise (Nexus, SOSP 2019)."""
