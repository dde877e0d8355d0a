"""Results of optimizers, schedules, losses and metrics, from MXNet or from the front end.

`Facts` gets the modules and evaluates the cases below. `record_training.py` runs it with MXNet and writes the golden
files; `test_training_facts.py` runs it with the front end and compares.
"""

import json

import numpy

STEPS = 4
DIFFERENTIATED = ("x", "x1", "x3", "p", "t", "tturned")

# An optimizer's name, its arguments, and the dtype of the weights if it is not float32.
OPTIMIZERS = """
sgd
sgd learning_rate=0.1
sgd learning_rate=0.1, momentum=0.9
sgd learning_rate=0.1, momentum=0.9, wd=0.1
sgd learning_rate=0.1, wd=0.1, clip_gradient=0.5
sgd learning_rate=0.1, momentum=0.9, wd=0.1, clip_gradient=0.5, rescale_grad=0.25
sgd learning_rate=0.1, momentum=0.5 | float64
sgd learning_rate=0.1, momentum=0.5, multi_precision=True | float16
sgd learning_rate=0.1, multi_precision=True | float16
nag
nag learning_rate=0.1, momentum=0.9
nag learning_rate=0.1, momentum=0.0, wd=0.1
nag learning_rate=0.1, momentum=0.9, wd=0.1, clip_gradient=0.5, rescale_grad=0.25
nag learning_rate=0.1, momentum=0.9, multi_precision=True | float16
adam
adam learning_rate=0.1
adam learning_rate=0.1, wd=0.5, clip_gradient=0.5, rescale_grad=0.25
adam learning_rate=0.1, beta1=0.5, beta2=0.9, epsilon=0.1
adam learning_rate=0.1 | float64
adam learning_rate=0.1, begin_num_update=10
adamw learning_rate=0.1
adamw learning_rate=0.1, wd=0.5, clip_gradient=0.5, rescale_grad=0.25
adamw learning_rate=0.1, wd=0.5, correct_bias=False
adabelief learning_rate=0.1
adabelief learning_rate=0.1, wd=0.5, clip_gradient=0.5, rescale_grad=0.25
adagrad
adagrad learning_rate=0.1
adagrad learning_rate=0.1, wd=0.5, clip_gradient=0.5, rescale_grad=0.25
adagrad learning_rate=0.1, wd=0.5, rescale_grad=0.25
adagrad learning_rate=0.1, eps=0.1
adagrad learning_rate=0.1, epsilon=0.1
adagrad learning_rate=0.1 | float64
adadelta
adadelta rho=0.5, wd=0.1, learning_rate=0.5
adadelta rho=0.5, epsilon=0.1, clip_gradient=0.5, rescale_grad=0.25
rmsprop
rmsprop learning_rate=0.1
rmsprop learning_rate=0.1, wd=0.5, clip_gradient=0.5, rescale_grad=0.25
rmsprop learning_rate=0.1, gamma1=0.5
rmsprop learning_rate=0.1, rho=0.5, epsilon=0.1
rmsprop learning_rate=0.1, clip_weights=0.2
rmsprop learning_rate=0.1, centered=True
rmsprop learning_rate=0.1, centered=True, wd=0.5, clip_gradient=0.5, clip_weights=0.5
ftrl
ftrl learning_rate=0.1, lamda1=0.5, wd=0.1, clip_gradient=0.5
ftml
ftml learning_rate=0.1, wd=0.1, clip_gradient=0.5
adamax
adamax learning_rate=0.1, wd=0.5, clip_gradient=0.5, rescale_grad=0.25
adamax learning_rate=0.1, epsilon=0.1
nadam
nadam learning_rate=0.1, wd=0.5, clip_gradient=0.5, rescale_grad=0.25
signum
signum learning_rate=0.1, wd=0.5, wd_lh=0.1, clip_gradient=0.5
signum learning_rate=0.1, momentum=0.0, wd=0.5
lamb
lamb learning_rate=0.1, wd=0.5, clip_gradient=0.5, rescale_grad=0.25
lamb learning_rate=0.1, bias_correction=False, lower_bound=0.5, upper_bound=2.0
lars
lars learning_rate=0.1, momentum=0.9, wd=0.5, eta=0.1, clip_gradient=0.5, rescale_grad=0.25
dcasgd
dcasgd learning_rate=0.1, momentum=0.5, wd=0.5, clip_gradient=0.5, rescale_grad=0.25
dcasgd learning_rate=0.1, lamda=1.0
test
ccsgd learning_rate=0.1
nothing
sgd learning_rate=0.1, unknown=1
"""

# A function of nd, the number of arrays of its state, and its arguments.
UPDATES = """
sgd_update 0 lr=0.1, wd=0.5
sgd_update 0 lr=0.1, wd=0.5, rescale_grad=0.5, clip_gradient=0.3
sgd_mom_update 1 lr=0.1, momentum=0.9, wd=0.5, lazy_update=False
nag_mom_update 1 lr=0.1, momentum=0.9
adam_update 2 lr=0.1, wd=0.5
adam_update 2 lr=0.1, beta1=0.5, beta2=0.9, epsilon=0.1, clip_gradient=0.3
rmsprop_update 1 lr=0.1
rmsprop_update 1 lr=0.1, gamma1=0.5
rmsprop_update 1 lr=0.1, rho=0.5
rmspropalex_update 3 lr=0.1, epsilon=9
ftrl_update 2 lr=0.1, lamda1=0.1
ftml_update 3 lr=0.1, t=2
signsgd_update 0 lr=0.1, wd=0.5
signum_update 1 lr=0.1, momentum=0.9
lamb_update_phase1 2 t=2, wd=0.1
"""

SCHEDULES = """
FactorScheduler(3, 0.5)
FactorScheduler(3, 0.5, base_lr=1.0, stop_factor_lr=0.2)
FactorScheduler(4, 0.5, base_lr=1.0, warmup_steps=5, warmup_begin_lr=0.1)
FactorScheduler(0)
FactorScheduler(1, 2.0)
MultiFactorScheduler([3, 7], 0.1, base_lr=1.0)
MultiFactorScheduler([3, 7], 0.1, base_lr=1.0, warmup_steps=2, warmup_mode='constant', warmup_begin_lr=0.3)
MultiFactorScheduler([7, 3])
PolyScheduler(10, base_lr=1.0)
PolyScheduler(10, base_lr=1.0, pwr=1, final_lr=0.1, warmup_steps=4)
CosineScheduler(10, base_lr=1.0)
CosineScheduler(10, base_lr=1.0, final_lr=0.1, warmup_steps=3, warmup_begin_lr=0.2)
CosineScheduler(0)
LRScheduler(0.1, warmup_begin_lr=0.2)
LRScheduler(0.1, warmup_steps=-1)
LRScheduler(0.1, warmup_mode='steep')
"""

# x is the prediction, whose gradient is recorded, too.
LOSSES = """
L2Loss()(x, y)
L2Loss(weight=3.0)(x, y)
L2Loss()(x, y, w)
L2Loss()(x, yflat)
L2Loss(batch_axis=1)(x, y)
L2Loss()(x3, y3)
L2Loss()(x1, y1)
L1Loss()(x, y)
L1Loss(weight=0.5)(x, y, w)
SigmoidBCELoss()(x, b)
SigmoidBCELoss(weight=2.0)(x, b, w)
SigmoidBCELoss()(x, b, None, pw)
SigmoidBCELoss()(x, b, w, pw)
SigmoidBCELoss(from_sigmoid=True)(p, b)
SigmoidBCELoss(from_sigmoid=True)(p, b, None, pw)
SigmoidBinaryCrossEntropyLoss()(x, b)
SoftmaxCELoss()(x, c)
SoftmaxCrossEntropyLoss()(x, c)
SoftmaxCrossEntropyLoss()(x, c, w)
SoftmaxCrossEntropyLoss(weight=2.0)(x, c)
SoftmaxCrossEntropyLoss(sparse_label=False)(x, p)
SoftmaxCrossEntropyLoss(from_logits=True)(x, c)
SoftmaxCrossEntropyLoss(axis=0)(x, c3)
SoftmaxCrossEntropyLoss(axis=1)(x3, c2)
SoftmaxCrossEntropyLoss()(x3, c3d)
SoftmaxCrossEntropyLoss()(x, c5)
SoftmaxCrossEntropyLoss()(x, cint)
KLDivLoss()(x, p)
KLDivLoss(from_logits=False)(x, p)
KLDivLoss(from_logits=False, weight=2.0)(x, p, w)
HuberLoss()(x, y)
HuberLoss(rho=0.3, weight=2.0)(x, y, w)
HingeLoss()(x, s)
HingeLoss(margin=2, weight=0.5)(x, s, w)
SquaredHingeLoss()(x, s)
SquaredHingeLoss(margin=2)(x, s, w)
LogisticLoss()(x, s)
LogisticLoss(label_format='binary')(x, b)
LogisticLoss(weight=2.0)(x, s, w)
LogisticLoss(label_format='other')
TripletLoss()(x, y, p)
TripletLoss(margin=0.1, weight=2.0)(x, y, p)
TripletLoss()(x, y, p, w1)
PoissonNLLLoss()(x, p)
PoissonNLLLoss(from_logits=False)(p, y)
PoissonNLLLoss(compute_full=True)(x, k)
PoissonNLLLoss(weight=2.0)(x, p, w)
CosineEmbeddingLoss()(x, y, s1)
CosineEmbeddingLoss(margin=0.2)(x, y, s1)
CosineEmbeddingLoss(weight=2.0)(x, y, s1, w)
SDMLLoss()(x, y)
SDMLLoss(smoothing_parameter=0.1)(x, y)
CTCLoss()(t, l)
CTCLoss(layout='TNC')(tturned, l)
CTCLoss(label_layout='TN')(t, lturned)
CTCLoss(weight=2.0)(t, l)
CTCLoss()(t, l, n, m)
CTCLoss()(t, l, None, m)
CTCLoss(layout='NCT')
L2Loss(weight='two')(x, y)
"""

REPRS = """
L2Loss()
L1Loss(weight=2.0, batch_axis=1)
SoftmaxCrossEntropyLoss()
"""

# A metric, and after it its updates: label, prediction.
METRICS = """
Accuracy(): c, p
Accuracy(): c, p; c, x
Accuracy(): c, c
Accuracy(axis=0): c3, p
Accuracy(): [c, c], [p, x]
Accuracy(name='mine'): c, p
Accuracy():
Accuracy(): c3, p
TopKAccuracy(top_k=2): c, p
TopKAccuracy(top_k=3): c, p; c, x
TopKAccuracy(top_k=1): c, p
F1(): b1, p2
F1(): b1, p2; b1, q2
F1(average='micro'): b1, p2; b1, q2
F1(average='macro'): b1, p2; b1, q2
F1(): c, p
MCC(): b1, p2
MCC(): b1, p2; b1, q2
MAE(): y, x
MAE(): y1, x1
MAE(): y, x; y1, x1
MSE(): y, x
MSE(): y1, x1; y, x
RMSE(): y, x
RMSE(): y, x; y1, x1
CrossEntropy(): c, p
CrossEntropy(eps=0.1): c, p; c, p
NegativeLogLikelihood(): c, p
Perplexity(ignore_label=None): [c], [p]
Perplexity(ignore_label=1): [c], [p]
Perplexity(ignore_label=None): [c], [p]; [c], [p]
PearsonCorrelation(): y, x
PearsonCorrelation(): y, x; p, x
PCC(): c, p
PCC(): c, p; c, x
Loss(): None, x
Loss(): None, [x, y]
Loss(): 0, x; 0, y1
Torch(): None, x
create('acc'): c, p
create('mse'): y, x
create('ce'): c, p
create(['acc', 'mae']): c, p
create('nothing'): c, p
CompositeEvalMetric(['acc', 'ce']): [c], [p]
BinaryAccuracy(): b1, x1
BinaryAccuracy(threshold=0.1): b1, x1
Fbeta(beta=2): b1, p2
F1(class_type='multiclass', average='macro'): c, p
F1(class_type='multiclass', average=None): c, p
F1(class_type='multilabel', average='micro'): b, p
MeanPairwiseDistance(): y, x
MeanCosineSimilarity(): y, x
CrossEntropy(from_logits=True): c, x
CustomMetric(difference): y, x
CustomMetric(difference, name='mine'): y, x; y1, x1
CustomMetric(pair): y, x
np(difference): y, x
np(difference, allow_extra_outputs=True): [y], [x, x]
"""


def lines(text):
    return text.strip().splitlines()


def difference(label, pred):
    return float(abs(label - pred).max())


def pair(label, pred):
    return float(abs(label - pred).max()), 3


def values():
    """The arrays of the cases, as NumPy's."""
    random = numpy.random.RandomState(3)

    def normal(*shape):
        return random.normal(size=shape).astype("float32")

    def shares(array):
        exponents = numpy.exp(array)
        return exponents / exponents.sum(axis=-1, keepdims=True)

    named = {"x": normal(3, 4), "y": normal(3, 4), "x3": normal(3, 2, 4), "y3": normal(3, 2, 4)}
    named |= {"x1": normal(4), "y1": normal(4), "w": numpy.array([[1], [0.5], [2]]), "w1": numpy.array([1, 0.5, 2])}
    named |= {"b": random.randint(0, 2, (3, 4)), "s": random.randint(0, 2, (3, 4)) * 2 - 1}
    named |= {"p": shares(normal(3, 4)), "pw": numpy.array([1, 2, 3, 0.5]), "p2": shares(normal(4, 2))}
    named |= {"c5": numpy.array([0, 5, -1]), "c3": numpy.array([0, 2, 1, 1]), "c2": random.randint(0, 2, (3, 4))}
    named |= {"c3d": random.randint(0, 4, (3, 2)), "k": random.randint(1, 9, (3, 4)), "s1": numpy.array([1, -1, 1])}
    named |= {"t": normal(2, 8, 5), "l": numpy.array([[1, 0, 3], [2, 2, -1]])}
    named |= {"n": numpy.array([8, 6]), "m": numpy.array([3, 2])}
    named |= {"q2": shares(normal(4, 2))}
    # Labels of which some are as predicted, and some are not.
    changes = numpy.array([1, 0, 0, 0])
    named |= {"c": (named["p"].argmax(axis=1) + changes[:3]) % 4, "b1": (named["p2"].argmax(axis=1) + changes) % 2}
    named |= {"yflat": named["y"].reshape(-1), "tturned": named["t"].swapaxes(0, 1), "lturned": named["l"].T}
    return {
        **{name: numpy.array(array, "float32") for name, array in named.items()},
        "cint": named["c"].astype("int32"),
    }


def as_text(facts):
    """JSON with one case per line."""
    modes = []
    for mode, groups in facts.items():
        sections = []
        for group, cases in groups.items():
            rows = [f"   {json.dumps(case)}: {json.dumps(fact, separators=(',', ':'))}" for case, fact in cases.items()]
            sections.append(f"  {json.dumps(group)}: {{\n" + ",\n".join(rows) + "\n  }")
        modes.append(f" {json.dumps(mode)}: {{\n" + ",\n".join(sections) + "\n }")
    return "{\n" + ",\n".join(modes) + "\n}"


def short(value):
    """Numbers with the digits that float32 has."""
    if isinstance(value, (list, tuple)):
        return [short(item) for item in value]
    if hasattr(value, "tolist"):
        return short(value.tolist())
    return float(f"{value:.7g}") if isinstance(value, float) else value


class Facts:
    """Evaluates cases with `modules`: optimizer, lr_scheduler, loss, metric, autograd; `array` makes an array."""

    def __init__(self, modules, array, version):
        self.modules, self.array, self.version = modules, array, version
        self.errors = {}

    def safely(self, group, case):
        """The facts about a case, or the type of its error."""
        try:
            return getattr(self, group)(case)
        except Exception as error:
            self.errors[group, case] = error
            return {"raises": type(error).__name__}

    def optimizer(self, case):
        """The weights after one step and after all, and the gradients then, of two weights."""
        code, _, dtype = case.partition(" | ")
        name, _, arguments = code.partition(" ")
        optimizer = self.modules["optimizer"].create(name, **eval(f"dict({arguments})"))
        updater = self.modules["optimizer"].get_updater(optimizer)
        random = numpy.random.RandomState(5)
        weights = [self.array(random.normal(size=shape).astype(dtype or "float32")) for shape in ((2, 3), (3, 1))]
        first = None
        for _ in range(STEPS):
            grads = [self.array(random.normal(size=w.shape).astype(dtype or "float32")) for w in weights]
            updater([0, 1], grads, weights)
            first = first or [short(w.asnumpy()) for w in weights]
        return {
            "first": first,
            "last": [short(w.asnumpy()) for w in weights],
            "gradients": [short(g.asnumpy()) for g in grads],
            "learning_rate": short(float(optimizer.learning_rate)),
        }

    def update(self, case):
        """The weight and the state after a step in place, and the result of a step that is not in place."""
        name, count, arguments = case.split(" ", 2)
        random = numpy.random.RandomState(5)
        weight, grad = (self.array(random.normal(size=(2, 3)).astype("float32")) for _ in range(2))
        states = [self.array(random.uniform(size=(2, 3)).astype("float32") + 1) for _ in range(int(count))]
        numbers = eval(f"dict({arguments})")
        function = getattr(self.modules["nd"], name)
        function(weight, grad, *states, out=weight, **numbers)
        after = [short(array.asnumpy()) for array in (weight, *states)]
        return {"in place": after, "new": short(function(weight, grad, *states, **numbers).asnumpy())}

    def schedule(self, case):
        """The learning rates at the first updates, and far beyond."""
        schedule = eval(case, vars(self.modules["lr_scheduler"]))
        return [short(float(schedule(update))) for update in [*range(12), 100]]

    def loss(self, case):
        named = {name: self.array(array) for name, array in values().items()}
        for name in DIFFERENTIATED:
            named[name].attach_grad()
        namespace = {name: getattr(self.modules["loss"], name) for name in self.modules["loss"].__all__}
        with self.modules["autograd"].record():
            result = eval(case, {**namespace, **named})
        facts = {"dtype": numpy.dtype(result.dtype).name, "value": short(result.asnumpy())}
        result.backward()
        used = compile(case, "case", "eval").co_names
        grads = {name: short(named[name].grad.asnumpy()) for name in DIFFERENTIATED if name in used}
        return {**facts, "shape": list(result.shape), "gradients": grads}

    def representation(self, case):
        return repr(eval(case, vars(self.modules["loss"])))

    def metric(self, case):
        code, _, updates = case.partition(":")
        metric = eval(code, {**vars(self.modules["metric"]), "difference": difference, "pair": pair})
        named = {name: self.array(array) for name, array in values().items()}
        for update in filter(None, (part.strip() for part in updates.split(";"))):
            label, pred = eval(update, named)
            metric.update(label, pred)
        facts = {"get": self._plain(metric.get()), "config": self._config(metric)}
        if self.version == 1:
            facts["global"] = self._plain(metric.get_global())
        metric.reset()
        return {**facts, "text": str(metric)}

    def _plain(self, named):
        name, value = named
        if isinstance(value, list):
            return [name, [short(float(item)) for item in value]]
        several = getattr(value, "shape", ()) not in ((), (1,))
        return [name, short(value.asnumpy()) if several else short(float(value))]

    def _config(self, metric):
        try:
            return str(metric.get_config())
        except NotImplementedError:
            return "none"

    def all(self, is_legacy):
        """The facts about every case."""
        groups = {"optimizer": OPTIMIZERS, "schedule": SCHEDULES, "loss": LOSSES, "representation": REPRS}
        groups["metric"] = METRICS
        if is_legacy:
            groups["update"] = UPDATES
        return {group: {case: self.safely(group, case) for case in lines(text)} for group, text in groups.items()}
