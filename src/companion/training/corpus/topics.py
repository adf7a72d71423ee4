"""Words of the chat grammar: topics with their parts, and one lexicon per field."""

from __future__ import annotations

# field -> topic -> parts of it
TOPICS: dict[str, dict[str, tuple[str, ...]]] = {
    "kitchen": {
        "tea": ("leaf", "water", "cup", "aroma", "kettle"),
        "coffee": ("bean", "roast", "mug", "filter", "crema"),
        "bread": ("flour", "crust", "dough", "oven", "yeast"),
        "soup": ("broth", "herb", "onion", "pot", "spoon"),
        "pasta": ("sauce", "basil", "garlic", "cheese", "boiling water"),
        "chocolate": ("cocoa", "sugar", "melt", "wrapper", "filling"),
        "honey": ("jar", "flower", "comb", "colour", "sweetness"),
        "salad": ("dressing", "tomato", "lettuce", "olive", "bowl"),
    },
    "sport": {
        "swimming": ("stroke", "breath", "pool", "kick", "lane"),
        "running": ("pace", "shoe", "trail", "warm-up", "distance"),
        "cycling": ("wheel", "helmet", "gear", "route", "saddle"),
        "tennis": ("serve", "racket", "court", "backhand", "ball"),
        "climbing": ("rope", "grip", "wall", "partner", "chalk"),
        "rowing": ("oar", "boat", "rhythm", "back", "crew"),
        "yoga": ("pose", "mat", "balance", "stretch", "breathing"),
        "football": ("pass", "team", "goal", "pitch", "training"),
    },
    "craft": {
        "painting": ("brush", "canvas", "colour", "light", "sketch"),
        "knitting": ("needle", "wool", "pattern", "stitch", "scarf"),
        "pottery": ("clay", "wheel", "glaze", "kiln", "bowl"),
        "photography": ("lens", "light", "frame", "shutter", "subject"),
        "drawing": ("pencil", "line", "shadow", "paper", "shape"),
        "sewing": ("thread", "fabric", "seam", "machine", "button"),
        "woodwork": ("saw", "plank", "joint", "sandpaper", "varnish"),
        "origami": ("fold", "paper", "crease", "crane", "corner"),
    },
    "nature": {
        "gardening": ("soil", "seed", "rose", "sun", "watering can"),
        "bird watching": ("song", "feather", "nest", "field glass", "notebook"),
        "hiking": ("boot", "map", "summit", "backpack", "view"),
        "fishing": ("hook", "lake", "patience", "rod", "bait"),
        "camping": ("tent", "fire", "star", "sleeping bag", "forest"),
        "astronomy": ("planet", "telescope", "moon", "galaxy", "dark sky"),
        "bees": ("hive", "queen", "wing", "pollen", "dance"),
        "trees": ("root", "bark", "branch", "ring", "shade"),
    },
    "music": {
        "the piano": ("key", "scale", "pedal", "chord", "left hand"),
        "the guitar": ("string", "fret", "strum", "tuning", "melody"),
        "singing": ("voice", "breath", "song", "pitch", "choir"),
        "the violin": ("bow", "string", "tone", "posture", "finger"),
        "drums": ("beat", "stick", "cymbal", "tempo", "groove"),
        "the flute": ("mouthpiece", "air", "note", "finger", "sound"),
        "jazz": ("swing", "solo", "harmony", "bass", "club"),
        "dancing": ("step", "turn", "rhythm", "partner", "floor"),
    },
    "learning": {
        "chess": ("opening", "pawn", "queen", "endgame", "clock"),
        "reading": ("chapter", "novel", "library", "page", "quiet hour"),
        "Spanish": ("verb", "accent", "word list", "conversation", "film"),
        "history": ("source", "map", "date", "museum", "story"),
        "programming": ("loop", "function", "test", "error", "editor"),
        "statistics": ("sample", "mean", "chart", "question", "variance"),
        "writing": ("sentence", "draft", "idea", "ending", "reader"),
        "cooking lessons": ("knife", "recipe", "taste", "teacher", "menu"),
    },
}

ADJECTIVES: dict[str, tuple[str, ...]] = {
    "kitchen": ("fresh", "warm", "simple", "rich", "mild", "sweet", "tasty", "honest", "fine", "cosy"),
    "sport": ("healthy", "quick", "steady", "strong", "playful", "light", "smooth", "tough", "fair", "lively"),
    "craft": ("creative", "calm", "neat", "bold", "patient", "delicate", "useful", "personal", "soft", "clever"),
    "nature": ("quiet", "wild", "green", "peaceful", "wide", "clear", "old", "gentle", "bright", "surprising"),
    "music": ("beautiful", "deep", "joyful", "clear", "slow", "expressive", "loud", "tender", "rhythmic", "pure"),
    "learning": ("useful", "curious", "clear", "deep", "practical", "careful", "new", "fascinating", "slow", "smart"),
}

TIPS: dict[str, tuple[str, ...]] = {
    "kitchen": ("taste it early", "buy a good one", "take your time", "keep it warm", "use less than you think"),
    "sport": ("start slowly", "practise twice a week", "watch your form", "rest enough", "ask a coach"),
    "craft": (
        "start with a small piece",
        "keep your hands relaxed",
        "try a cheap one first",
        "repeat it often",
        "copy a master",
    ),
    "nature": ("go early in the morning", "stay still for a while", "bring a friend", "look twice", "keep it clean"),
    "music": ("play it slowly", "listen to it every day", "use a metronome", "record yourself", "stay relaxed"),
    "learning": (
        "take short notes",
        "repeat it the next day",
        "explain it to a friend",
        "begin with an easy one",
        "make it a habit",
    ),
}

PEOPLE = ("beginners", "families", "busy people", "children", "friends", "older people", "students", "everyone")
GAINS = (
    "it calms the mind",
    "it costs little",
    "it brings people together",
    "you see progress soon",
    "it never gets dull",
    "it keeps you awake",
    "you can do it anywhere",
    "it trains your patience",
    "it makes you smile",
)
