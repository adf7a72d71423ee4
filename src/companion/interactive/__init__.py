"""Parts of a page that answer to a hand: a slider, buttons, keys. None of them needs a kernel or a network.

A part is plain HTML that already says everything, in a notebook, in print, without scripts. In a page of the book,
`book/static/interactive.js` turns it into something to step through.
"""

from companion.interactive.bracket import bracket
from companion.interactive.part import Part
from companion.interactive.replay import decode_replay
from companion.interactive.schedule import schedule_steps

__all__ = ["Part", "bracket", "decode_replay", "schedule_steps"]
