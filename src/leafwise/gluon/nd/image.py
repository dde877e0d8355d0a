"""`mxnet.nd.image`: what the transforms of pictures need."""

from leafwise.gluon.arrays.legacy_calls import exposed
from leafwise.gluon.base import missing
from leafwise.gluon.ops.legacy import pictures

crop, normalize, to_tensor = exposed(pictures.crop), exposed(pictures.normalize), exposed(pictures.to_tensor)
flip_left_right, flip_top_bottom = exposed(pictures.flip_left_right), exposed(pictures.flip_top_bottom)

__all__ = ["crop", "flip_left_right", "flip_top_bottom", "normalize", "to_tensor"]
__getattr__ = missing("nd.image", {}, "use gluon.data.vision.transforms, or torchvision on x.tensor")
