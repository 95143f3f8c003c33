"""Steps that deliver windows: run, staged and committed later, replayed, in parts, many at once."""

from __future__ import annotations

from typing import Any

from kafka_ordered_ops import OrderedWindows, Policy, StagedOutput, WindowPlan
from kafka_ordered_ops.core.types import PlanContent, WindowStatus
from kafka_ordered_ops.core.window.window_id import default_window_id
from tests.support.oracle.outputs import verbs
from tests.support.oracle.outputs.choices import OWN_IDS, Asked, Choices, Staged, later
from tests.support.oracle.outputs.steps import Step
from tests.support.oracle.outputs.world import Place


class Deliveries(Choices):
    """What processes do to deliver windows."""

    def run(self, step: Step) -> None:
        """Plan, read, write, commit and publish, in one call."""
        self._run(step, self.question(step))

    def again(self, step: Step) -> None:
        """Make a call again, as a scheduler does."""
        self._run(step, self.known_question(step) or self.question(step))

    def _run(self, step: Step, asked: Asked) -> None:
        allow_fewer = step.numbers[7] % 8 == 0
        policy = Policy(allow_fewer=allow_fewer)

        def act(windows: OrderedWindows) -> Any:
            words = self.roots.run_words(asked.place.path, self.told.partition_by)
            return windows.run(asked.window, window_id=asked.window_id, policy=policy, **words)

        ids = [asked.window_id]
        self.call("run", step, asked.actor, act, ids, asked.place, allow_fewer=allow_fewer)

    def stage(self, step: Step) -> None:
        """Plan and stage a window, and leave it at that for now."""
        asked = self.question(step)

        def act(windows: OrderedWindows) -> Any:
            plan = windows.plan(asked.window, asked.window_id)
            if plan.content is PlanContent.COVERED or plan.status.is_done:
                return None
            return plan, self._staged(windows, plan, asked.place)

        heard = self.call("stage", step, asked.actor, act, [asked.window_id], asked.place)
        if heard.value is not None:
            plan, output = heard.value
            self.staged.append(Staged(asked.actor, plan, output, asked.place))

    def finish_staged(self, step: Step) -> None:
        """Go on with a staged window: commit and publish it, or commit it alone, or publish it alone."""
        if not self.staged:
            self.stage(step)
            return
        one = self.staged[step.numbers[1] % len(self.staged)]

        def act(windows: OrderedWindows) -> Any:
            match step.numbers[2] % 8:
                case 0:
                    windows.publish(one.plan, one.output)
                case 1 | 2 | 3:
                    windows.commit(windows.mark_written(one.plan, one.output.to_json()))
                case _:
                    windows.commit(one.plan, one.output)

        self.call("finish_staged", step, one.actor, act, [one.plan.window_id], one.place)

    def replay(self, step: Step) -> None:
        """Read a committed window again, most often into its own place."""
        claim = self.known_claim(step)
        if claim is None or claim.place is None:
            self.run(step)
            return
        window_id, own = claim.window_id, claim.place
        place = own if step.numbers[2] % 5 else self.place(step.numbers[3])
        claim.shown_in.add(place)

        def act(windows: OrderedWindows) -> Any:
            plan = windows.replay(window_id)
            if plan.content is PlanContent.COVERED:
                return
            output = self._staged(windows, plan, place)
            if step.numbers[4] % 2 and place is own:
                windows.publish(plan, output)
            else:
                output.publish()

        self.call("replay", step, self.actor(step), act, [window_id], place)

    def parts(self, step: Step) -> None:
        """Split a window among two tasks, and join what they have staged."""
        asked = self.question(step)

        def act(windows: OrderedWindows) -> Any:
            plan = windows.plan(asked.window, asked.window_id)
            if plan.content is PlanContent.RECORDS and plan.status is WindowStatus.PLANNED:
                for part in windows.split(plan, 2):
                    windows.report(part, self._staged(windows, part, asked.place))
            windows.deliver(
                plan,
                lambda one: self._staged(windows, one, asked.place),
                verbs.found_in(asked.place.path),
            )

        self.call("parts", step, asked.actor, act, [asked.window_id], asked.place)

    def many(self, step: Step) -> None:
        """Deliver two hours in one pass."""
        asked = self.question(step)
        if asked.window.sweep or asked.window_id in OWN_IDS:
            self._run(step, asked)
            return
        second = later(asked.window)
        names = [asked.window_id, default_window_id(self.group_id(asked.actor), second)]
        if self.account.meant[asked.actor].get(names[1], asked.place) is not asked.place:
            self._run(step, asked)
            return
        self.asked.setdefault((asked.actor, names[1]), second)

        def act(windows: OrderedWindows) -> Any:
            windows.deliver_many(
                windows.plan_many([asked.window, second]),
                lambda plans: self.roots.stage(
                    plans, windows.settings, asked.place.path, self.told.partition_by
                ),
                verbs.found_in(asked.place.path),
            )

        self.call("many", step, asked.actor, act, names, asked.place)

    def _staged(self, windows: OrderedWindows, plan: WindowPlan, place: Place) -> StagedOutput:
        [output] = self.roots.stage([plan], windows.settings, place.path, self.told.partition_by)
        return output
