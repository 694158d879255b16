"""How hypothesis runs in the suite: on any machine the same examples, and no judgement by the clock.

A property that fails must do so where it was broken, not on somebody's machine months later. To look for new examples:
`pytest --hypothesis-profile=explore`, after a change of what is generated or of what it tests.
"""

from hypothesis import HealthCheck, settings

settings.register_profile("suite", deadline=None, derandomize=True, suppress_health_check=(HealthCheck.too_slow,))
settings.register_profile("explore", deadline=None, suppress_health_check=(HealthCheck.too_slow,))
settings.load_profile("suite")
