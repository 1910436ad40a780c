"""Where the weights lie and in which precision: the same answers, or one clear line."""

import copy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import dispatch_model
from helpers import CLASSES, N_LAYERS, Case, Cases, close, padded, reference_logits, texts
from models.checkpoints import refusal

from mechcore.components import Mask
from mechcore.errors import InputError
from mechcore.evaluation.evaluate import evaluate
from mechcore.masking.interventions import masked
from mechcore.masking.means import MeanActivations
from mechcore.models import load_model, loading
from mechcore.models.architectures.layers import stack_of
from mechcore.models.devices import check_device
from mechcore.models.model_identity import ModelIdentity
from mechcore.models.protocol import forward


@pytest.mark.parametrize("device_map", [{"": "cpu"}, "auto"])
def test_a_model_placed_by_accelerate_is_the_same(cases: Cases, device_map: Any) -> None:
    case = cases.get("gpt2")
    model = load_model(case.path, device_map=device_map)
    assert ModelIdentity.of(model) == ModelIdentity.of(case.model)
    rows = texts()
    with torch.no_grad():
        close(forward(model, padded(rows, "left", noise=3)), reference_logits(case.reference, rows))
    assert not any(parameter.requires_grad for parameter in model.parameters())


def test_hooks_of_accelerate_and_masks_get_along(case: Case) -> None:
    """Accelerate wraps every module, as on several devices, to move things to where they are."""
    hf_model = copy.deepcopy(case.reference)
    dispatch_model(
        hf_model, {name: "cpu" for name, _ in hf_model.named_children()}, force_hooks=True
    )
    model = loading._bridge(str(case.path), type(hf_model).__name__, hf_model, None)
    model.requires_grad_(False)
    labels = torch.arange(5) % len(CLASSES)
    batches = [{**padded(texts(seed=seed)), "labels": labels} for seed in (1, 2)]
    plain, dispatched = (MeanActivations.compute(m, batches) for m in (case.model, model))
    close(dispatched.z, plain.z, 1e-6)
    close(dispatched.mlp, plain.mlp, 1e-6)
    gradients = []
    for network, means in ((case.model, plain), (model, dispatched)):
        values = torch.full_like(Mask.full(network).values, 0.5).requires_grad_()
        with masked(network, Mask(values), means) as run:
            run(batches[0]).square().sum().backward()
        assert values.grad is not None
        gradients.append(values.grad)
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)
    mask = Mask.full(model).without("L0.H1")
    evaluation = evaluate(model, batches, mask=mask, means=dispatched)
    expected = evaluate(case.model, batches, mask=mask, means=plain)
    close(evaluation.logits, expected.logits)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device_map": "auto", "device": "cpu"}, "device_map and device (cpu) exclude each other"),
        ({"device_map": "fastest"}, "found fastest; expected auto, balanced, cpu, or the device"),
        ({"device_map": "cpu", "backend": "hooked"}, 'device_map: needs backend "bridge"'),
        ({"dtype": "double"}, "dtype: found double; expected float32, bfloat16, float16 or a"),
    ],
)
def test_wrong_places_and_precisions(cases: Cases, options: dict[str, Any], message: str) -> None:
    assert message in refusal(cases.path("bert"), **options)


def test_a_built_model_stays_where_it_is(cases: Cases) -> None:
    message = refusal(cases.get("bert").model, device_map="auto")
    assert "device_map: the model is already built (TransformerBridge)" in message


@pytest.mark.parametrize("device", ["cuda", torch.device("cuda")])
def test_a_missing_device(cases: Cases, monkeypatch: pytest.MonkeyPatch, device: Any) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    message = f"device {device}: torch {torch.__version__} finds no such device on this machine; "
    assert refusal(cases.path("bert"), device=device) == f"{message}choose cpu"


def test_devices_are_counted_from_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for there in ("cpu", "meta", "cuda", "cuda:0", "cuda:1"):
        check_device(torch.device(there))
    with pytest.raises(InputError, match=r"^device cuda:2: this machine has 2, counted from 0$"):
        check_device(torch.device("cuda:2"))


def test_weights_for_which_memory_has_no_room_are_refused(
    cases: Cases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = loading.AutoModelForSequenceClassification
    little = {"max_memory": {"cpu": 12_000}, "offload_folder": str(tmp_path)}
    monkeypatch.setattr(kind, "from_pretrained", partial(kind.from_pretrained, **little))
    for architecture in ("bert", "gpt2"):
        path = cases.path(architecture)
        message = refusal(path, device_map="auto")
        assert message.startswith(f"checkpoint {path}: ")
        assert " of its weights are offloaded, " in message
        assert "in a smaller dtype (bfloat16)" in message


def test_a_built_model_with_weights_on_disk_is_refused(cases: Cases, tmp_path: Path) -> None:
    case = cases.get("bert")
    hf_model = copy.deepcopy(case.reference)
    places = {"": "cpu", f"bert.encoder.layer.{N_LAYERS - 1}": "disk"}
    dispatch_model(hf_model, places, main_device="cpu", offload_dir=str(tmp_path))
    model = loading._bridge(str(case.path), type(hf_model).__name__, hf_model, None)
    message = refusal(model)
    assert "model: 16 of its weights are offloaded, bert.encoder.layer.1." in message


def test_the_prefix_tree_wants_one_device(cases: Cases, monkeypatch: pytest.MonkeyPatch) -> None:
    """Devices beyond the processor are made up: machines that test this have one."""
    model = cases.get("gpt2").model
    monkeypatch.setattr(
        "mechcore.models.architectures.layers.devices_of",
        lambda _: [torch.device("cuda:0"), torch.device("cuda:1")],
    )
    message = r"on several devices \(cuda:0, cuda:1\); expected .* on one device; engine='restart'"
    with pytest.raises(InputError, match=message):
        stack_of(model)
