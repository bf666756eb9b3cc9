"""Derivatives of ops, as ops: the public module `dagpu.grad`."""

from dagpu.grad import linear_rules as linear_rules
from dagpu.grad import mesh_rules as mesh_rules
from dagpu.grad import order_rules as order_rules
from dagpu.grad import stencil_rules as stencil_rules
from dagpu.grad.checking import assert_gradient
from dagpu.grad.element_derivatives import derivative
from dagpu.grad.gradients import grad, stop_gradient, value_and_grad, vjp
from dagpu.grad.own_rules import Rule, gradient_of
from dagpu.grad.parameterized import Parameterized, parameters, zip_parameters
from dagpu.grad.updating import adam, momentum, sgd, updated

__all__ = [
    "Parameterized", "Rule", "adam", "assert_gradient", "derivative", "grad", "gradient_of", "momentum", "parameters",
    "sgd", "stop_gradient", "updated", "value_and_grad", "vjp", "zip_parameters",
]  # fmt: skip
