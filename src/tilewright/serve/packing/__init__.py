"""The models that share a core so that each keeps its promise (Nexus, SOSP 2019)."""
