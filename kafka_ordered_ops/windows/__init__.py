"""The service that every host calls."""

from kafka_ordered_ops.core.policy import Policy
from kafka_ordered_ops.windows.delivery import Delivery, Staged
from kafka_ordered_ops.windows.service import OrderedWindows

__all__ = ["Delivery", "OrderedWindows", "Policy", "Staged"]
