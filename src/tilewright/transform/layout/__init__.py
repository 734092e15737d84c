"""Layouts: how each value lies in memory and how each product's weights are packed, decided node by node."""
