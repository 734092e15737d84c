"""Layouts: how each value lies in memory and how each product's weights are packed, by the algorithms that selection
noted (`transform/select/`)."""
