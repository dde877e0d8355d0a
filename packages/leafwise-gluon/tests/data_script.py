"""Datasets, samplers, loaders, transforms and utilities, in both dialects. record_data.py records what MXNet prints."""

import random as python_random
import sys
import warnings

import mxnet as mx
import numpy
from mxnet import gluon
from mxnet.gluon import data as gdata
from mxnet.gluon.data.vision import transforms

V1 = mx.__version__.startswith("1")
array = mx.nd.array if V1 else mx.np.array


def shown(x):
    if isinstance(x, (list, tuple)):
        return f"{type(x).__name__}[{', '.join(map(shown, x))}]"
    if hasattr(x, "asnumpy"):
        numbers = [round(float(number), 3) for number in x.asnumpy().ravel()[:24]]
        return f"{type(x).__name__} {x.shape} {numpy.dtype(x.dtype).name} {x.context} {numbers}"
    if isinstance(x, numpy.generic):
        return f"numpy.{type(x).__name__} {round(x.item(), 4)}"
    return repr(round(x, 4) if isinstance(x, float) else x)


def case(title, run):
    try:
        print(title, "=>", shown(run()))
    except Exception as error:
        print(title, "=>", type(error).__name__)


def numbers(*shape, dtype="float32"):
    return array(numpy.arange(int(numpy.prod(shape))).reshape(shape).astype(dtype), dtype=dtype)


# -- datasets ---------------------------------------------------------------------------------------------------------
plain = gdata.SimpleDataset(list(range(10)))
case("filter", lambda: list(plain.filter(lambda number: number % 3 == 0)))
for shard in range(4):
    case(f"shard {shard}", lambda shard=shard: list(plain.shard(4, shard)))
case("shard 4", lambda: plain.shard(4, 4))
case("take", lambda: list(plain.take(3)))
case("take none", lambda: len(plain.take(None)))
case("sample", lambda: list(plain.sample(gdata.SequentialSampler(3))))
case("sample list", lambda: plain.sample([1, 2]))
case("transform", lambda: list(plain.transform(lambda number: number * 2)))
case("eager transform", lambda: type(plain.transform(lambda number: number * 2, lazy=False)).__name__)
pairs = gdata.ArrayDataset(numbers(4, 2), numbers(4))
case("pair", lambda: pairs[1])
case("slice", lambda: pairs[1:3])
case("first", lambda: pairs.transform_first(lambda x: x * 10)[1])
case("both", lambda: pairs.transform(lambda x, y: (y, x))[2])
case("one array", lambda: gdata.ArrayDataset(numbers(3, 2))[1])
case("list", lambda: gdata.ArrayDataset([1, 2, 3], ["a", "b", "c"])[1])
case("lengths", lambda: gdata.ArrayDataset([1, 2], [1]))
case("nothing", lambda: gdata.ArrayDataset())

# -- samplers ---------------------------------------------------------------------------------------------------------
for last in ("keep", "discard", "rollover"):
    batches = gdata.BatchSampler(gdata.SequentialSampler(7), 3, last)
    case(f"{last} len", lambda batches=batches: len(batches))
    case(f"{last} 1", lambda batches=batches: list(batches))
    case(f"{last} 2", lambda batches=batches: list(batches))
    case(f"{last} len after", lambda batches=batches: len(batches))
case("other last", lambda: list(gdata.BatchSampler(gdata.SequentialSampler(7), 3, "other")))
numpy.random.seed(3)
case("random", lambda: list(map(int, gdata.RandomSampler(8))))
case("filter sampler", lambda: list(gdata.FilterSampler(lambda number: number > 6, plain)))
case("start", lambda: list(gdata.SequentialSampler(3, 4)))

# -- loaders ----------------------------------------------------------------------------------------------------------
case("loader", lambda: list(gdata.DataLoader(pairs, 3)))
case("loader len", lambda: len(gdata.DataLoader(pairs, 3)))
case("loader discard", lambda: list(gdata.DataLoader(pairs, 3, last_batch="discard")))
numpy.random.seed(5)
case("loader shuffle", lambda: list(gdata.DataLoader(pairs, 2, shuffle=True)))
case("loader of array", lambda: list(gdata.DataLoader(numbers(4, 2), 2)))
case("loader of ints", lambda: list(gdata.DataLoader(list(range(5)), 2)))
case("loader of float64", lambda: list(gdata.DataLoader(gdata.ArrayDataset(numpy.ones((2, 2))), 2)))
case("loader of tuples", lambda: list(gdata.DataLoader([(1, 2.0), (3, 4.0)], 2)))
case("loader of triples", lambda: list(gdata.DataLoader([(1, (2, 3)), (3, (4, 5))], 2)))
case("loader of lists", lambda: list(gdata.DataLoader([[1, 2], [3, 4]], 2)))
case("loader of bytes", lambda: list(gdata.DataLoader(gdata.SimpleDataset(numbers(3, 2, dtype="uint8")), 2)))
case("own batches", lambda: list(gdata.DataLoader(plain, 4, batchify_fn=lambda samples: samples)))
case("batch sampler", lambda: list(gdata.DataLoader(plain, batch_sampler=[[1, 2], [3]])))
case("both samplers", lambda: gdata.DataLoader(plain, 2, batch_sampler=[[1, 2], [3]]))
case("no size", lambda: gdata.DataLoader(plain))
case("sampler and shuffle", lambda: gdata.DataLoader(plain, 2, shuffle=True, sampler=gdata.SequentialSampler(3)))
case("timeout", lambda: gdata.DataLoader(plain, 2, timeout=0))
case("threads", lambda: list(gdata.DataLoader(plain.transform(float), 4, num_workers=2, thread_pool=True)))
case("workers", lambda: list(gdata.DataLoader(plain.transform(float), 4, num_workers=2)))

# -- batches ----------------------------------------------------------------------------------------------------------
if not V1:
    batchify = gdata.batchify
    case("stack", lambda: batchify.Stack()([[1, 2], [3, 4]]))
    case("stack arrays", lambda: batchify.Stack()([numbers(2), numbers(2)]))
    case("pad", lambda: batchify.Pad(val=-1)([[1, 2, 3], [4]]))
    case("pad floats", lambda: batchify.Pad()([numpy.ones((2, 2)), numpy.ones((1, 3))]))
    case("pad dtype", lambda: batchify.Pad(dtype="float32", round_to=4)([[1, 2, 3], [4]]))
    case("pad tuple", lambda: batchify.Pad()([(1, 2), (3,)]))
    case("group", lambda: batchify.Group(batchify.Pad(), batchify.Stack())([([1, 2], 0), ([3], 1)]))
    case("group wrong", lambda: batchify.Group(batchify.Pad())([([1, 2], 0), ([3], 1)]))
    case("as list", lambda: batchify.Group(batchify.Stack(), batchify.AsList())([(1, "a"), (2, "b")]))
    case("interval", lambda: list(gdata.IntervalSampler(7, 3)) + list(gdata.IntervalSampler(7, 3, rollover=False)))

# -- transforms -------------------------------------------------------------------------------------------------------
image = array(numpy.random.RandomState(0).randint(0, 256, (5, 7, 3)).astype("uint8"), dtype="uint8")
floats = image.astype("float32")
for kind, picture in (("bytes", image), ("floats", floats)):
    case(f"tensor {kind}", lambda picture=picture: transforms.ToTensor()(picture))
    for size, keep, how in ((4, False, 1), ((3, 9), False, 1), (10, True, 1), (6, False, 0), ((14, 10), False, 1)):
        case(
            f"resize {kind} {size} {keep} {how}",
            lambda picture=picture, size=size, keep=keep, how=how: transforms.Resize(size, keep, how)(picture),
        )
    for size in (3, (4, 2), 8):
        case(f"center {kind} {size}", lambda picture=picture, size=size: transforms.CenterCrop(size)(picture))
    case(f"part {kind}", lambda picture=picture: transforms.CropResize(1, 2, 3, 2)(picture))
    case(f"part resized {kind}", lambda picture=picture: transforms.CropResize(1, 2, 3, 2, (4, 4), 1)(picture))
    mx.random.seed(1)
    even = array(picture.asnumpy()[:4, :6], dtype=picture.dtype)  # MXNet 1.x does not write the middle of odd ones
    case(f"left right {kind}", lambda picture=even: [transforms.RandomFlipLeftRight()(picture) for _ in range(9)])
    case(f"top bottom {kind}", lambda picture=even: [transforms.RandomFlipTopBottom()(picture) for _ in range(9)])
    case(f"bright {kind}", lambda picture=picture: [transforms.RandomBrightness(0.4)(picture) for _ in range(5)])
    if not V1:
        case(f"crop {kind}", lambda picture=picture: [transforms.RandomCrop(3)(picture) for _ in range(5)])
        case(f"padded {kind}", lambda picture=picture: [transforms.RandomCrop((4, 3), 2, 9)(picture) for _ in range(5)])
        case(f"often {kind}", lambda picture=picture: [transforms.RandomFlipLeftRight(0.9)(picture) for _ in range(5)])
        case(f"always {kind}", lambda picture=picture: transforms.RandomFlipTopBottom(1)(picture))
    for title, transform in {
        "contrast": transforms.RandomContrast(0.7),
        "saturation": transforms.RandomSaturation(0.8),
        "hue": transforms.RandomHue(0.3),
        "lighting": transforms.RandomLighting(0.5),
        "jitter": transforms.RandomColorJitter(0.4, 0.5, 0.6, 0.2),
        "jitter contrast": transforms.RandomColorJitter(contrast=0.5),
    }.items():
        results = [transform(picture) for _ in range(4)]
        if kind == "floats":  # fewer digits
            results = [result / 100 for result in results]
        case(f"{title} {kind}", lambda results=results: results)
    python_random.seed(3)
    for title, transform in {
        "random part": transforms.RandomResizedCrop(4),
        "random part of a ratio": transforms.RandomResizedCrop((6, 3), scale=(0.3, 0.9), ratio=(0.5, 2.0)),
    }.items():
        case(f"{title} {kind}", lambda picture=picture, transform=transform: [transform(picture) for _ in range(4)])
    if not V1:
        case(f"grey {kind}", lambda picture=picture: [transforms.RandomGray()(picture) for _ in range(5)])
tensor = transforms.ToTensor()(image)
case("normalize", lambda: transforms.Normalize(0.5, 0.25)(tensor))
case("normalize channels", lambda: transforms.Normalize((0.1, 0.2, 0.3), (0.5, 1, 2))(tensor))
case("normalize wrong", lambda: transforms.Normalize((0.1, 0.2), (0.5, 1))(tensor).asnumpy())
case("cast", lambda: transforms.Cast("float16")(tensor))
case("batch", lambda: transforms.ToTensor()(array(numpy.ones((2, 3, 4, 1)), dtype="float32")))
composed = transforms.Compose([transforms.Resize(4), transforms.ToTensor(), transforms.Normalize(0.5, 0.25)])
case("compose", lambda: composed(image))
print(composed)
case("compose cast", lambda: transforms.Compose([transforms.ToTensor(), transforms.Cast("float64")])(image))
labelled = gdata.ArrayDataset([image] * 3, [0, 1, 2]).transform_first(composed)
case("dataset of images", lambda: list(gdata.DataLoader(labelled, 2)))

# -- utilities --------------------------------------------------------------------------------------------------------
batch = numbers(5, 2)
case("split", lambda: gluon.utils.split_data(batch, 2, even_split=False))
case("split evenly", lambda: gluon.utils.split_data(batch, 2))
case("split columns", lambda: gluon.utils.split_data(batch, 2, batch_axis=1))
case("load", lambda: gluon.utils.split_and_load(batch, [mx.cpu()]))
case("load two", lambda: gluon.utils.split_and_load(batch, [mx.cpu(0), mx.cpu(1)], even_split=False))
case("load numpy", lambda: gluon.utils.split_and_load(numpy.arange(4), [mx.cpu(0), mx.cpu(1)]))
case("load list", lambda: gluon.utils.split_and_load([[1, 2], [3, 4]], [mx.cpu(0)]))
parts = gluon.utils.split_data(batch, 5)
parts[0][:] = 100
case("view", lambda: batch)
arrays = [numbers(3), numbers(2, 2)]
case("norm", lambda: gluon.utils.clip_global_norm(arrays, 1.0))
case("clipped", lambda: arrays)
case("norm below", lambda: gluon.utils.clip_global_norm(arrays, 10.0))
case("norm unchecked", lambda: gluon.utils.clip_global_norm(arrays, 0.5, check_isfinite=False))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    case("norm nan", lambda: gluon.utils.clip_global_norm([array([float("inf"), 1])], 1.0))
    print([str(warning.message) for warning in caught if warning.category is UserWarning])
case(
    "known", lambda: [gluon.utils.shape_is_known(shape) for shape in (None, (), (0,), (1, 2), (-1 if not V1 else 0, 2))]
)
sys.stdout.flush()
