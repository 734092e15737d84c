"""The names of ONNX Runtime's module of this name, as far as there are such things here."""

from tilewright.onnxruntime import get_all_providers as get_all_providers
from tilewright.onnxruntime import get_available_providers as get_available_providers
from tilewright.onnxruntime import get_default_session_options as get_default_session_options
from tilewright.onnxruntime.description import ModelMetadata as ModelMetadata
from tilewright.onnxruntime.description import NodeArg as NodeArg
from tilewright.onnxruntime.errors import EngineError as EngineError
from tilewright.onnxruntime.errors import EPFail as EPFail
from tilewright.onnxruntime.errors import Fail as Fail
from tilewright.onnxruntime.errors import InvalidArgument as InvalidArgument
from tilewright.onnxruntime.errors import InvalidGraph as InvalidGraph
from tilewright.onnxruntime.errors import InvalidProtobuf as InvalidProtobuf
from tilewright.onnxruntime.errors import ModelLoaded as ModelLoaded
from tilewright.onnxruntime.errors import NoModel as NoModel
from tilewright.onnxruntime.errors import NoSuchFile as NoSuchFile
from tilewright.onnxruntime.errors import NotImplemented as NotImplemented
from tilewright.onnxruntime.errors import RuntimeException as RuntimeException
from tilewright.onnxruntime.options import RunOptions as RunOptions
from tilewright.onnxruntime.options import SessionOptions as SessionOptions
from tilewright.onnxruntime.session import InferenceSession as InferenceSession
from tilewright.onnxruntime.session import SessionIOBinding as SessionIOBinding
from tilewright.onnxruntime.values import OrtDevice as OrtDevice
from tilewright.onnxruntime.values import OrtMemoryInfo as OrtMemoryInfo
from tilewright.onnxruntime.values import OrtValue as OrtValue
from tilewright.onnxruntime.values import OrtValueVector as OrtValueVector
