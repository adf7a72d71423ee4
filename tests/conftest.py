"""Settings that every test shares."""

from hypothesis import settings

# A loaded two-core machine stretches single examples past any deadline; the whole run has its own time limit.
settings.register_profile("companion", deadline=None)
settings.load_profile("companion")
