"""Image classifiers of timm: one small member of each family, with small images."""

from __future__ import annotations

from functools import partial

import torch

from benchmarks.zoo.entry import Builder, Entry
from benchmarks.zoo.libraries import library

CLASSES = 100

SIZES = {
    "resnet18": 96,
    "mobilenetv3_small_050": 96,
    "efficientnet_lite0": 96,
    "convnext_atto": 96,
    "vit_tiny_patch16_224": 224,
    "swin_tiny_patch4_window7_224": 224,
    "beit_base_patch16_224": 224,
    "botnet26t_256": 256,
    "bat_resnext26ts": 256,
    "caformer_s18": 96,
    "poolformer_s12": 96,
    "cait_xxs24_224": 224,
    "coat_lite_tiny": 224,
    "coatnet_nano_rw_224": 224,
    "convit_tiny": 224,
    "convmixer_768_32": 64,
    "crossvit_9_240": 240,
    "cs3darknet_focus_s": 96,
    "cspresnet50": 96,
    "davit_tiny": 224,
    "deit_tiny_distilled_patch16_224": 224,
    "densenet121": 96,
    "dla34": 96,
    "dm_nfnet_f0": 96,
    "dpn48b": 96,
    "ese_vovnet19b_slim": 96,
    "edgenext_xx_small": 96,
    "efficientformer_l1": 224,
    "efficientformerv2_s0": 224,
    "efficientvit_b0": 96,
    "efficientvit_m0": 224,
    "efficientvim_m1": 224,
    "eva02_tiny_patch14_224": 224,
    "fasternet_t0": 96,
    "fastvit_t8": 256,
    "focalnet_tiny_srf": 224,
    "gcvit_xxtiny": 224,
    "ghostnet_050": 96,
    "gmlp_ti16_224": 224,
    "mixer_s32_224": 224,
    "resmlp_12_224": 224,
    "hardcorenas_a": 96,
    "hgnetv2_b0": 96,
    "hiera_tiny_224": 224,
    "hrnet_w18_small": 96,
    "iformer_t": 224,
    "inception_next_atto": 96,
    "inception_v3": 128,
    "lcnet_050": 96,
    "legacy_seresnet18": 96,
    "levit_128s": 224,
    "lowformer_b0": 224,
    "mambaout_femto": 96,
    "mobilenetv4_conv_small": 96,
    "mobilevit_xxs": 128,
    "mobilevitv2_050": 128,
    "mvitv2_tiny": 224,
    "nest_tiny": 224,
    "nextvit_small": 96,
    "pit_ti_224": 224,
    "pvt_v2_b0": 96,
    "rdnet_tiny": 96,
    "regnetx_002": 96,
    "regnety_002": 96,
    "repghostnet_050": 96,
    "repvit_m0_9": 96,
    "repvgg_a0": 96,
    "res2net50_26w_4s": 96,
    "resnest14d": 96,
    "resnetv2_50": 96,
    "resnext50_32x4d": 96,
    "rexnet_100": 96,
    "selecsls42": 96,
    "sequencer2d_s": 224,
    "shvit_s1": 96,
    "skresnet18": 96,
    "starnet_s1": 96,
    "swiftformer_xs": 96,
    "swinv2_cr_tiny_ns_224": 224,
    "swinv2_tiny_window8_256": 256,
    "test_vit_relpos": 160,
    "tiny_vit_5m_224": 224,
    "tnt_s_patch16_224": 224,
    "tresnet_m": 96,
    "twins_svt_small": 224,
    "vgg11_bn": 64,
    "visformer_tiny": 224,
    "vit_relpos_small_patch16_224": 224,
    "volo_d1_224": 224,
    "xception41": 96,
    "xcit_nano_12_p16_224": 224,
}
"""The side of each one's image; where its own is required, that."""


def build(name: str, side: int) -> Entry:
    """One image f32[1, 3, side, side] and its classifier."""
    model = library("timm").create_model(name, pretrained=False, num_classes=CLASSES)
    return Entry(model.eval(), (torch.randn(1, 3, side, side),))


MODELS: dict[str, Builder] = {f"timm-{name}": partial(build, name, side) for name, side in SIZES.items()}
