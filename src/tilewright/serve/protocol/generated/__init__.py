"""Written by protoc from `inference.proto`."""
