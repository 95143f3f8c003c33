"""The service that every host calls."""

from kafka_ordered_ops.core.window.policy import Policy
from kafka_ordered_ops.kafka.settings import ClientSettings
from kafka_ordered_ops.windows.delivery import Delivery, Staged
from kafka_ordered_ops.windows.service import OrderedWindows

__all__ = ["ClientSettings", "Delivery", "OrderedWindows", "Policy", "Staged"]
