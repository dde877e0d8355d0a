"""`mxnet.npx.image`: operations on images."""

from leafwise_gluon.image_functions import crop, flip_left_right, flip_top_bottom, normalize, resize, to_tensor

__all__ = ["crop", "flip_left_right", "flip_top_bottom", "normalize", "resize", "to_tensor"]
