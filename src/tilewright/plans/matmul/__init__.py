"""Matrix products: register tiles over packed panels, epilogues, dot instructions."""
