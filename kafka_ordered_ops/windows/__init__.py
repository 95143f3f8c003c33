"""The service that every host calls."""

from kafka_ordered_ops.core.window.policy import Policy
from kafka_ordered_ops.kafka.settings import ClientSettings
from kafka_ordered_ops.windows.delivery import Delivery
from kafka_ordered_ops.windows.service import OrderedWindows
from kafka_ordered_ops.windows.sink import Staged

__all__ = ["ClientSettings", "Delivery", "OrderedWindows", "Policy", "Staged"]
