"""TFLite files (LiteRT's): a reader of their flatbuffers, and rules for their operators."""

from tilewright.frontend.tflite.importer import import_tflite, reads

__all__ = ["import_tflite", "reads"]
