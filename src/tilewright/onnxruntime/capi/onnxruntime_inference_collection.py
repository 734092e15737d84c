"""The names of ONNX Runtime's module of this name, as far as there are such things here."""

from tilewright.onnxruntime.binding import IOBinding as IOBinding
from tilewright.onnxruntime.devices import OrtDevice as OrtDevice
from tilewright.onnxruntime.providers import check_and_normalize_provider_args as check_and_normalize_provider_args
from tilewright.onnxruntime.session import InferenceSession as InferenceSession
from tilewright.onnxruntime.values import OrtValue as OrtValue
