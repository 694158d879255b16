"""A fleet in virtual time: boxes made up here, the controller's own pure code, no broker and no clock.

`scenario` says what happens, `world` is the truth (load, need, quality), `box` a box, `outbox` what waits for the broker, `controller`
the pure functions in the order in which the live controller calls them, `run` all of it, `result` what came of it.

It may be used to compare decisions, to see that nothing is lost, and to measure the controller's own CPU time. Its boxes are models:
how fast a real box is, and how good a real model, it does not say.
"""
