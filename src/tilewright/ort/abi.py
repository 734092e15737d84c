"""ONNX Runtime's C interface as numbers: the index of each function in its table, and the kinds of its parameters.

The interface is append-only: a function keeps its place in all later releases. What stands here is version 24 of it
(`onnxruntime_c_api.h` and `onnxruntime_ep_c_api.h` of release 1.24), which every release in `TESTED` has.
"""

from __future__ import annotations

API_VERSION = 24
"""The version of the interface that is requested, and that our structs declare."""

POINTER, SIZE, INT = "p", "z", "i"
"""Kinds of parameters: an address; a `size_t` or an `int64_t`; an `int` or an enumeration."""

# name: (place, parameters). Each of these gives a status.
CHECKED: dict[str, tuple[int, str]] = {
    "GetTensorMutableData": (51, "pp"),
    "CastTypeInfoToTensorInfo": (55, "pp"),
    "GetOnnxTypeFromTypeInfo": (56, "pp"),
    "GetTensorElementType": (60, "pp"),
    "GetDimensionsCount": (61, "pp"),
    "GetDimensions": (62, "ppz"),
    "GetSymbolicDimensions": (63, "ppz"),
    "KernelContext_GetInput": (90, "pzp"),
    "KernelContext_GetOutput": (91, "pzpzp"),
    "ReadOpAttr": (272, "pipzp"),
    "GetValueInfoName": (289, "pp"),
    "GetValueInfoTypeInfo": (290, "pp"),
    "GetTensorSizeInBytes": (318, "pp"),
    "ValueInfo_GetInitializerValue": (326, "pp"),
    "ValueInfo_IsConstantInitializer": (331, "pp"),
    "Graph_GetName": (333, "pp"),
    "Graph_GetOnnxIRVersion": (335, "pp"),
    "Graph_GetNumOperatorSets": (336, "pp"),
    "Graph_GetOperatorSets": (337, "pppz"),
    "Graph_GetNumInputs": (338, "pp"),
    "Graph_GetInputs": (339, "ppz"),
    "Graph_GetNumOutputs": (340, "pp"),
    "Graph_GetOutputs": (341, "ppz"),
    "Graph_GetNumInitializers": (342, "pp"),
    "Graph_GetInitializers": (343, "ppz"),
    "Graph_GetNumNodes": (344, "pp"),
    "Graph_GetNodes": (345, "ppz"),
    "Graph_GetParentNode": (346, "pp"),
    "Node_GetId": (348, "pp"),
    "Node_GetName": (349, "pp"),
    "Node_GetOperatorType": (350, "pp"),
    "Node_GetDomain": (351, "pp"),
    "Node_GetNumInputs": (353, "pp"),
    "Node_GetInputs": (354, "ppz"),
    "Node_GetNumOutputs": (355, "pp"),
    "Node_GetOutputs": (356, "ppz"),
    "Node_GetNumAttributes": (359, "pp"),
    "Node_GetAttributes": (360, "ppz"),
    "OpAttr_GetTensorAttributeAsOrtValue": (362, "pp"),
    "OpAttr_GetType": (363, "pp"),
    "OpAttr_GetName": (364, "pp"),
    "Node_GetNumSubgraphs": (365, "pp"),
    "Node_GetSubgraphs": (366, "ppzp"),
    "GetSessionOptionsConfigEntries": (379, "pp"),
    "GetTensorElementTypeAndShapeDataReference": (414, "pppp"),
}
# The same for functions that give something else: an address, or a number.
UNCHECKED: dict[str, tuple[int, str, str]] = {
    "CreateStatus": (0, "ip", POINTER),
    "GetErrorMessage": (2, "p", POINTER),
    "ReleaseStatus": (93, "p", ""),
    "ReleaseValue": (96, "p", ""),
    "GetKeyValuePairs": (298, "pppp", ""),
    "ReleaseKeyValuePairs": (300, "p", ""),
    "HardwareDevice_Type": (307, "p", INT),
    "GetEpApi": (317, "", POINTER),
    "TensorTypeAndShape_HasShape": (390, "p", INT),
}
# The places in `OrtEpApi`, whose functions give a status.
EP_CHECKED: dict[str, tuple[int, str]] = {
    "CreateEpDevice": (0, "ppppp"),
    "EpGraphSupportInfo_AddNodesToFuse": (2, "ppzp"),
}

FACTORY = (
    "GetName", "GetVendor", "GetSupportedDevices", "CreateEp", "ReleaseEp", "GetVendorId", "GetVersion",
    "ValidateCompiledModelCompatibilityInfo", "CreateAllocator", "ReleaseAllocator", "CreateDataTransfer",
    "IsStreamAware", "CreateSyncStreamForDevice",
)  # fmt: skip
"""The functions of `OrtEpFactory`, which begins with its version in a word of its own."""
PROVIDER = ("GetName", "GetCapability", "Compile", "ReleaseNodeComputeInfos")
"""The functions of `OrtEp` that we implement; the rest may be null."""
NODE = ("CreateState", "Compute", "ReleaseState")
"""The functions of `OrtNodeComputeInfo`."""
STRUCT_WORDS = 64
"""Words of a struct that is passed to ONNX Runtime, more than in any release; unused ones are null."""
OPTIONS_WORDS = 2
"""Words of `OrtNodeFusionOptions`: its version, and whether initializers are dropped (the fifth byte)."""

CPU = 0
"""`OrtHardwareDeviceType_CPU`."""
INVALID_ARGUMENT, EP_FAIL = 2, 11
"""Codes of a status: `ORT_INVALID_ARGUMENT`, `ORT_EP_FAIL`."""
TENSOR = 1
"""`ONNX_TYPE_TENSOR`."""
INT_ATTRIBUTE, INTS, FLOAT, FLOATS, STRING, STRINGS, GRAPH, TENSOR_ATTRIBUTE = 1, 2, 3, 4, 5, 6, 7, 8
"""`OrtOpAttrType`."""
