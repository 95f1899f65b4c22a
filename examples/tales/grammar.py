"""Writes tales, and talks about them, from a small grammar of English.

Everything is drawn from the random generator that the caller hands in, so a
seed fixes the text.  A tale carries the facts it was made from; questions and
their right answers come from those facts, never from reading the text back.
"""

from dataclasses import dataclass, field

SHE = "Vera Mina Rosa Lena Tilda Nora Ada Ivy Greta Hazel Wilma Clara Stella Maya Olive June".split()
HE = "Otto Finn Hugo Max Oscar Peter Tobias Jonas Emil Bruno Felix Anton Leo Theo Ralph Sam".split()
ANIMALS = (
    "fox owl mouse hare bear frog hedgehog cat dog goat sheep pony donkey squirrel badger otter "
    "beaver mole robin crow swan deer rabbit turtle wolf sparrow lamb penguin pigeon kitten puppy"
).split()
PEOPLE = "baker miller sailor shepherd farmer gardener tailor".split()
GENDERED = {"girl": "she", "queen": "she", "boy": "he", "king": "he"}
KINDS = ANIMALS + PEOPLE + list(GENDERED)
NATURES = "clever kind brave shy cheerful gentle lazy proud young little honest patient".split()
COLOURS = "red blue green yellow white black golden silver brown purple".split()
TREASURES = (
    "lantern key bell ring hat kite drum flute book map basket coin cup button scarf ball whistle "
    "mirror umbrella blanket clock candle shell necklace spoon feather box purse ribbon glove"
).split()
TOOLS = "hammer saw ladder rope bucket brush axe".split()
PULLERS = "rope ladder scarf blanket net belt".split()
LIGHTS = "lantern candle torch lamp".split()
INSTRUMENTS = "drum flute whistle bell fiddle harp horn".split()
HOMES = [
    ("in", "forest"), ("on", "hill"), ("by", "river"), ("in", "valley"), ("near", "mill"),
    ("on", "farm"), ("beside", "lake"), ("on", "mountain"), ("in", "village"), ("on", "island"),
    ("by", "sea"), ("in", "castle"), ("in", "garden"), ("in", "cave"), ("under", "bridge"),
    ("in", "meadow"), ("near", "harbour"), ("in", "cottage"),
]
LANDSCAPE = "quiet lonely beautiful windy misty distant lovely peaceful cold famous".split()
NEAR = ["behind", "beside", "near", "next to"]
SPOTS = [
    "barn", "well", "hollow tree", "haystack", "garden gate", "mossy rock", "stone wall",
    "wooden stairs", "rose bush", "apple tree", "church door", "water wheel", "broken cart",
    "fallen log", "old oven",
]
WEATHER = "cold windy rainy bright foggy quiet warm".split()
TIMES = "morning evening day afternoon night".split()
GIFTS = [
    "a warm pie", "a jar of honey", "a basket of apples", "a sweet cake", "a bag of nuts",
    "a bowl of soup", "a loaf of bread", "a bunch of flowers", "a pot of jam", "a piece of cheese",
    "a bag of berries", "a plate of pancakes",
]
TRAPS = ["a muddy ditch", "a dry well", "a deep hole", "a cold stream", "a thorn bush", "a dark pit"]
BREAKABLE = "roof door fence boat cart window chimney wall".split()
STORMS = ["a great storm", "a strong wind", "a heavy rain", "a wild flood"]
FEARS = ["the dark", "thunder", "deep water", "high places", "strangers", "the wind", "loud noises"]
SKILLS = ["sing", "dance", "swim", "paint", "bake bread", "fly a kite", "tell jokes", "plant flowers"]
RELATIVES = "aunt uncle brother sister cousin grandmother grandfather".split()
MISTS = ["the fog", "the snow", "the dark", "the rain"]
UNHAPPY = "sad worried unhappy upset".split()
AFRAID = "frightened scared afraid".split()
HAPPY = "happy glad cheerful merry".split()

# Subjects the teller has no tale about, and questions that are not its trade.
UNKNOWN = (
    "robot dragon spaceship computer wizard dinosaur pirate train car rocket ghost vampire unicorn "
    "football monster zombie doctor teacher tiger elephant whale mermaid submarine helicopter "
    "astronaut detective knight princess volcano city school hospital telephone shark spider crocodile"
).split()
OFF_TOPIC = [
    "What is the capital of {land}?", "How many people live in {land}?", "Where is {land}?",
    "What is {n} plus {m}?", "What is {n} times {m}?", "How do I cook {dish}?",
    "Can you give me a recipe for {dish}?", "What is the weather like today?",
    "What will the weather be tomorrow?", "Who won the football game?", "Who is the president of {land}?",
    "Write a program in {code}.", "Can you write a {code} function?", "How do I learn {code}?",
    "What is the meaning of life?", "How far away is the moon?", "Explain quantum physics.",
    "Translate this into {tongue}.", "Do you speak {tongue}?", "How do I fix my {gadget}?",
    "Which {gadget} should I buy?", "What time is it?", "How old is the universe?",
    "Solve this equation for me.", "Can you help me with my homework?", "What is the news today?",
    "Why is the sky blue?", "How does a {gadget} work?", "Who wrote this song?",
    "What does the word {word} mean?", "How do you spell {word}?", "Give me another word for {word}.",
    "What is the opposite of {word}?", "Use the word {word} in a sentence.", "Tell me about {land}.", "Tell me the history of {land}.", "Explain how a {gadget} works.",
]
FILL = {
    "land": "Greece Portugal Denmark France Germany Spain Italy China India Japan Brazil Canada Egypt Sweden Norway Mexico Turkey Poland".split(),
    "n": [str(i) for i in range(2, 30)], "m": [str(i) for i in range(2, 30)],
    "dish": "rice pasta fish chicken potatoes eggs noodles tomatoes".split(),
    "code": "Python Java Rust JavaScript".split(),
    "tongue": "French German Spanish Latin".split(),
    "word": (
        "simple different important possible public general common special strange certain language money number "
        "people music market engine freedom science history nature power energy weather summer letter "
        "question answer problem reason machine water paper business company government country "
        "moment family health building future success under above between through without against "
        "remember understand continue believe explain imagine travel change create develop "
        "picture window number second minute because however together always never sometimes often").split(),
    "gadget": "computer phone car bicycle radio television".split(),
}


def a(words):
    """The words with their indefinite article."""
    vowel = words[0] in "aeiou" and not words.startswith("uni")
    return ("an " if vowel or words.startswith("honest") else "a ") + words


def cap(text):
    return text[0].upper() + text[1:]


@dataclass
class Fact:
    """One thing that can be asked: ways to ask, and the right answers, the usual one first."""
    ask: list
    answers: list


@dataclass
class Tale:
    text: str
    facts: list
    topics: list       # (what a listener may have asked for, words the tale must then hold)
    absent: list = field(default_factory=list)


def _cast(rng):
    """A hero and a helper of different kinds, with names and pronouns."""
    w = {}
    kinds = rng.sample(KINDS, 2)
    names = set()
    for kind, name_key, kind_key, pre in ((kinds[0], "H", "k", ""), (kinds[1], "F", "fk", "f")):
        he = GENDERED.get(kind) or rng.choice(("she", "he"))
        name = rng.choice([n for n in (SHE if he == "she" else HE) if n not in names])
        names.add(name)
        w[name_key], w[kind_key], w[pre + "he"] = name, kind, he
        w[pre + "him"], w[pre + "his"] = ("her", "her") if he == "she" else ("him", "his")
    return w


# Lines shared by several plots.  {F} enters the tale through one of these.
COMES = [
    "Then {a_fk} named {F} came by and wanted to help.",
    "{A_fk} named {F} heard about it and came to help.",
    "Luckily, {a_fk} named {F} lived nearby and promised to help.",
    "Soon {a_fk} named {F} came along the path.",
]
THANKS = [
    "{H} thanked {F} and gave {fhim} {gift}.",
    "To say thank you, {H} gave {F} {gift}.",
    "{H} was {good} again and gave {F} {gift}.",
]
THANKS_FACT = [
    (["What did {h} give {f}?", "What did {f} get from {h}?", "How did {h} thank {f}?",
      "What was the gift?", "What did {h} give to {f}?"], ["{H} gave {F} {gift}."]),
]

# Each plot: the words it draws, its lines in order (one form of each is used), its facts, its
# lessons and the themes under which it may be asked for.
PLOTS = {
    "lost": dict(
        draw=dict(thing=TREASURES, bad=UNHAPPY),
        lines=[
            ["{He} owned {a_obj}, and {he} loved it very much.", "{His} greatest treasure was {a_obj}.",
             "Every day {he} carried {a_obj}."],
            ["One {when}, the {thing} was gone.", "One {when}, {he} lost the {thing} on the way home.",
             "One {when}, {H} could not find the {thing}."],
            ["{H} was {bad} and looked everywhere.", "{H} was so {bad} that {he} began to cry.",
             "{H} was very {bad}, because the {thing} was lost."],
            COMES,
            ["They searched together, and at last {F} found the {thing} {spot}.",
             "{F} looked carefully and found the {thing} {spot}.",
             "Before the sun went down, {F} found it {spot}."],
            THANKS,
        ],
        facts=[
            (["What did {h} lose?", "What was lost?", "What was gone?", "What was missing?"],
             ["{H} lost {a_obj}.", "{H} lost the {thing}."]),
            (["What colour was the {thing}?", "What was the colour of the {thing}?",
              "Which colour did the {thing} have?"], ["The {thing} was {colour}.", "It was {colour}."]),
            (["When did {h} lose the {thing}?", "When was the {thing} lost?"],
             ["{H} lost the {thing} on a {when}."]),
            (["Why was {h} {bad}?", "Why was {h} so {bad}?", "Why did {h} feel {bad}?"],
             ["{H} was {bad} because the {thing} was lost."]),
            (["How did {h} feel when the {thing} was gone?", "How did {h} feel without the {thing}?"],
             ["{H} was {bad}."]),
            (["Who found the {thing}?", "Who found the lost {thing}?", "Who found it?"],
             ["{F} the {fk} found the {thing}.", "{F} found the {thing}."]),
            (["Where was the {thing}?", "Where did {f} find the {thing}?", "Where was the {thing} found?"],
             ["The {thing} was {spot}.", "{F} found the {thing} {spot}."]),
        ] + THANKS_FACT,
        lessons=["a good friend is better than gold", "lost things can be found again",
                 "two can search better than one"],
        themes=["something that was lost", "{a_k} who loses {a_thing}", "a lost {thing}"],
    ),
    "stuck": dict(
        draw=dict(thing=PULLERS, trap=TRAPS, bad=AFRAID),
        lines=[
            ["One {when}, {H} was walking {spot} and fell into {trap}.",
             "One {when}, {he} slipped {spot} and fell into {trap}.",
             "One {when}, {H} went for a walk, and {spot} {he} fell into {trap}."],
            ["{H} was {bad} and called for help.", "{He} could not get out, and {he} was {bad}.",
             "{H} was very {bad}, for nobody was there."],
            ["{A_fk} named {F} heard the cries and came running.", "Then {a_fk} named {F} came by.",
             "Luckily, {a_fk} named {F} was not far away."],
            ["{F} brought {a_obj} and pulled {H} out.", "{F} took {a_obj} and pulled {H} out with it.",
             "With {a_obj}, {F} pulled {H} out."],
            THANKS,
        ],
        facts=[
            (["What did {h} fall into?", "Where did {h} fall?", "What happened to {h}?"],
             ["{H} fell into {trap}."]),
            (["When did {h} fall?", "When did this happen?"], ["It happened on a {when}."]),
            (["Why was {h} {bad}?", "Why was {h} so {bad}?", "Why did {h} call for help?"],
             ["{H} was {bad} because {he} fell into {trap}."]),
            (["Who pulled {h} out?", "Who saved {h}?", "Who rescued {h}?"],
             ["{F} the {fk} pulled {H} out.", "{F} pulled {H} out."]),
            (["What did {f} use to pull {h} out?", "What did {f} bring?", "How did {f} save {h}?"],
             ["{F} used {a_obj}."]),
            (["What colour was the {thing}?", "What was the colour of the {thing}?"],
             ["The {thing} was {colour}.", "It was {colour}."]),
        ] + THANKS_FACT,
        lessons=["it is wise to look where you walk", "it is good to call for help",
                 "even the strong need help"],
        themes=["a rescue", "{a_k} who falls into a hole", "{a_k} in danger"],
    ),
    "storm": dict(
        draw=dict(thing=TOOLS, storm=STORMS, broken=BREAKABLE, bad=UNHAPPY),
        lines=[
            ["One {when}, {storm} broke {H}'s {broken}.", "One {when}, {storm} came and broke {his} {broken}.",
             "Then came {storm}, and one {when} it broke {his} {broken}."],
            ["{H} was {bad} and did not know what to do.", "{H} was {bad}, because the {broken} was broken.",
             "{He} could not mend it alone, and {he} was very {bad}."],
            COMES,
            ["{F} brought {a_obj} and mended the {broken}.", "{F} had {a_obj} and mended the {broken} in one day.",
             "With {a_obj}, {F} mended the {broken}."],
            THANKS,
        ],
        facts=[
            (["What did the storm break?", "What was broken?", "What broke?"],
             ["The {broken} was broken."]),
            (["What broke the {broken}?", "How did the {broken} break?", "Why was the {broken} broken?"],
             ["{Storm} broke the {broken}."]),
            (["When did the {broken} break?", "When was the {broken} broken?"], ["It broke on a {when}."]),
            (["Why was {h} {bad}?", "Why was {h} so {bad}?", "Why did {h} feel {bad}?"],
             ["{H} was {bad} because the {broken} was broken."]),
            (["Who mended the {broken}?", "Who repaired the {broken}?", "Who fixed the {broken}?"],
             ["{F} the {fk} mended the {broken}.", "{F} mended the {broken}."]),
            (["What did {f} bring?", "What did {f} use?", "What did {f} use to mend the {broken}?"],
             ["{F} used {a_obj}."]),
            (["What colour was the {thing}?", "What was the colour of the {thing}?"],
             ["The {thing} was {colour}.", "It was {colour}."]),
        ] + THANKS_FACT,
        lessons=["good neighbours are a treasure", "what is broken can be mended",
                 "work is lighter with a friend"],
        themes=["a storm", "bad weather", "{a_k} with a broken {broken}", "a good neighbour"],
    ),
    "hungry": dict(
        draw=dict(thing=TREASURES, bad=UNHAPPY),
        lines=[
            ["One {when}, {H} had nothing left to eat.", "One {when}, {his} kitchen was empty.",
             "One {when}, there was no food in the house."],
            ["{H} was hungry and {bad}.", "{H} was so hungry that {he} could not sleep, and {he} was {bad}.",
             "{H} was very {bad}, because {he} was hungry."],
            ["Then {a_fk} named {F} knocked on the door.", "{A_fk} named {F} heard about it.",
             "Luckily, {a_fk} named {F} lived nearby."],
            ["{F} had {gift} and shared it with {H}.", "{F} brought {gift} and gave {H} half of it.",
             "{F} came with {gift}, and they ate it together."],
            ["In spring, {H} gave {F} {a_obj}.", "To say thank you, {H} gave {F} {a_obj}.",
             "{H} was {good} and gave {F} {a_obj}."],
        ],
        facts=[
            (["Why was {h} {bad}?", "Why was {h} so {bad}?", "Why did {h} feel {bad}?"],
             ["{H} was {bad} because {he} was hungry."]),
            (["When was there nothing to eat?", "When did {h} have no food?"], ["It was on a {when}."]),
            (["What did {f} share?", "What did {f} bring?", "What did {f} have?"], ["{F} shared {gift}."]),
            (["What did {h} and {f} eat?", "What did they eat?"], ["They ate {gift}."]),
            (["Who shared food with {h}?", "Who brought food?", "Who gave {h} food?"],
             ["{F} the {fk} shared food with {H}.", "{F} shared food with {H}."]),
            (["What did {h} give {f}?", "How did {h} thank {f}?", "What was the gift?",
              "What did {f} get from {h}?", "What did {h} give to {f}?"],
             ["{H} gave {F} {a_obj}."]),
            (["What colour was the {thing}?", "What was the colour of the {thing}?"],
             ["The {thing} was {colour}.", "It was {colour}."]),
        ],
        lessons=["food tastes best when it is shared", "kindness always comes back",
                 "sharing makes two hearts glad"],
        themes=["sharing", "sharing food", "a hungry {k}", "{a_k} who has no food"],
    ),
    "lonely": dict(
        draw=dict(thing=INSTRUMENTS, bad=["lonely", "sad", "unhappy"], skill=SKILLS),
        lines=[
            ["{H} had no friends, and {he} was {bad}.", "{H} was often {bad}, because {he} had no friends.",
             "Nobody ever came to visit, and {H} was {bad}."],
            ["One {when}, {H} heard music {spot}.", "One {when}, a sweet sound came to {his} ears {spot}.",
             "One {when}, {he} went for a walk and heard music {spot}."],
            ["{A_fk} named {F} was playing {a_obj}.", "It was {a_fk} named {F}, who was playing {a_obj}.",
             "There sat {a_fk} named {F} and played {a_obj}."],
            ["{F} smiled and taught {H} to {skill}.", "They began to talk, and {F} taught {H} to {skill}.",
             "{F} was kind and taught {H} to {skill}."],
            THANKS,
        ],
        facts=[
            (["Why was {h} {bad}?", "Why was {h} so {bad}?", "Why did {h} feel {bad}?"],
             ["{H} was {bad} because {he} had no friends."]),
            (["When did {h} hear music?", "When did {h} meet {f}?"], ["It was on a {when}."]),
            (["Where did {h} hear music?", "Where did {h} hear the music?", "Where did {h} meet {f}?"],
             ["{H} heard the music {spot}."]),
            (["Who was playing the {thing}?", "Who made the music?", "Who played the {thing}?"],
             ["{F} the {fk} played the {thing}.", "{F} played the {thing}."]),
            (["What did {f} play?", "What was {f} playing?", "Which instrument did {f} play?"],
             ["{F} played {a_obj}.", "{F} played the {thing}."]),
            (["What colour was the {thing}?", "What was the colour of the {thing}?"],
             ["The {thing} was {colour}.", "It was {colour}."]),
            (["What did {f} teach {h}?", "What did {h} learn to do?", "What did {f} teach {h} to do?"],
             ["{F} taught {H} to {skill}."]),
        ] + THANKS_FACT,
        lessons=["a friend can be found anywhere", "music brings hearts together",
                 "nobody has to be alone"],
        themes=["music", "friendship", "a lonely {k}", "{a_k} who has no friends"],
    ),
    "honest": dict(
        draw=dict(thing=TREASURES),
        lines=[
            ["One {when}, {H} found {a_obj} {spot}.", "One {when}, {he} saw {a_obj} {spot} and picked it up.",
             "One {when}, {a_obj} lay {spot}, and {H} took it home."],
            ["It was so beautiful that {H} wanted to keep it.", "{H} wondered who had lost it.",
             "At first {he} wanted to keep the {thing}."],
            ["Then {a_fk} named {F} came by, who had lost it.",
             "But it belonged to {a_fk} named {F}.",
             "Soon {H} heard that {a_fk} named {F} was looking for it."],
            ["{H} gave the {thing} back to {F}.", "So {H} went to {F} and gave the {thing} back.",
             "{H} thought for a while and gave the {thing} back to {F}."],
            ["{F} was {good} and gave {H} {gift}.", "To say thank you, {F} gave {H} {gift}.",
             "{F} thanked {H} and gave {him} {gift}."],
        ],
        facts=[
            (["What did {h} find?", "What was found?", "What did {h} pick up?"],
             ["{H} found {a_obj}.", "{H} found the {thing}."]),
            (["Who found the {thing}?"], ["{H} the {k} found the {thing}.", "{H} found the {thing}."]),
            (["Where did {h} find the {thing}?", "Where was the {thing}?", "Where was the {thing} found?"],
             ["The {thing} was {spot}.", "{H} found the {thing} {spot}."]),
            (["When did {h} find the {thing}?", "When was the {thing} found?"],
             ["{H} found the {thing} on a {when}."]),
            (["What colour was the {thing}?", "What was the colour of the {thing}?"],
             ["The {thing} was {colour}.", "It was {colour}."]),
            (["Whose {thing} was it?", "Who had lost the {thing}?", "Who was the owner of the {thing}?",
              "To whom did the {thing} belong?"], ["The {thing} belonged to {F} the {fk}."]),
            (["What did {h} do with the {thing}?"], ["{H} gave the {thing} back to {F}."]),
            (["Did {h} keep the {thing}?"], ["No, {H} gave the {thing} back to {F}."]),
            (["What did {f} give {h}?", "What did {h} get from {f}?", "How did {f} thank {h}?",
              "What was the gift?", "What did {f} give to {h}?"], ["{F} gave {H} {gift}."]),
        ],
        lessons=["it is best to be honest", "an honest heart is rich",
                 "giving back feels better than keeping"],
        themes=["honesty", "an honest {k}", "{a_k} who finds {a_thing}"],
    ),
    "way": dict(
        draw=dict(thing=LIGHTS, kin=RELATIVES, mist=MISTS, bad=AFRAID),
        lines=[
            ["One {when}, {H} went to visit {his} {kin}.", "One {when}, {he} wanted to see {his} {kin}.",
             "One {when}, {H} set out to visit {his} {kin}."],
            ["On the way, {he} got lost in {mist}, and {he} was {bad}.",
             "But {he} lost the path in {mist} and was {bad}.",
             "Soon {he} was lost in {mist}, and {H} was very {bad}."],
            ["{A_fk} named {F} heard {him} call.", "Then {a_fk} named {F} came along the path.",
             "Luckily, {a_fk} named {F} was out walking too."],
            ["{F} carried {a_obj} and led {H} home.", "{F} held up {a_obj} and showed {H} the way home.",
             "With {a_obj}, {F} led {H} home."],
            THANKS,
        ],
        facts=[
            (["Whom did {h} want to visit?", "Who did {h} want to visit?", "Where was {h} going?",
              "Why did {h} leave home?"], ["{H} wanted to visit {his} {kin}."]),
            (["When did {h} set out?", "When did {h} get lost?"], ["It was on a {when}."]),
            (["What happened to {h}?", "Where did {h} get lost?"], ["{H} got lost in {mist}."]),
            (["Why was {h} {bad}?", "Why was {h} so {bad}?", "Why did {h} feel {bad}?"],
             ["{H} was {bad} because {he} was lost in {mist}."]),
            (["Who led {h} home?", "Who showed {h} the way?", "Who brought {h} home?"],
             ["{F} the {fk} led {H} home.", "{F} led {H} home."]),
            (["What did {f} carry?", "What did {f} have?", "What did {f} hold?"],
             ["{F} carried {a_obj}."]),
            (["What colour was the {thing}?", "What was the colour of the {thing}?"],
             ["The {thing} was {colour}.", "It was {colour}."]),
        ] + THANKS_FACT,
        lessons=["a small light can show the way", "it is wise to know the path",
                 "no road is long with a friend"],
        themes=["getting lost", "{a_k} who loses the way", "a walk in {mist}"],
    ),
    "brave": dict(
        draw=dict(thing=TREASURES, fear=FEARS),
        lines=[
            ["{H} was afraid of {fear}.", "But {H} was always afraid of {fear}.",
             "There was one thing that troubled {him}: {he} was afraid of {fear}."],
            ["One {when}, {he} hid {spot}.", "One {when}, {H} was so afraid that {he} hid {spot}.",
             "One {when}, {he} ran away and hid {spot}."],
            ["There {a_fk} named {F} found {him}.", "{A_fk} named {F} saw {him} there.",
             "Then {a_fk} named {F} sat down beside {him}."],
            ["{F} gave {H} {a_obj} and told {him} to be brave.", "{F} spoke softly and gave {H} {a_obj}.",
             "To make {him} brave, {F} gave {H} {a_obj}."],
            ["After that, {H} was not afraid any more.", "{H} held the {thing} and was brave.",
             "{H} took the {thing}, and soon the fear was gone."],
        ],
        facts=[
            (["What was {h} afraid of?", "What did {h} fear?", "What troubled {h}?"],
             ["{H} was afraid of {fear}."]),
            (["When did {h} hide?"], ["{H} hid on a {when}."]),
            (["Where did {h} hide?", "Where did {f} find {h}?", "Where was {h} hiding?"],
             ["{H} hid {spot}."]),
            (["Why did {h} hide?", "Why did {h} run away?"], ["{H} hid because {he} was afraid of {fear}."]),
            (["What did {f} give {h}?", "What did {h} get from {f}?", "What was the gift?",
              "How did {f} make {h} brave?", "What did {f} give to {h}?"], ["{F} gave {H} {a_obj}."]),
            (["What colour was the {thing}?", "What was the colour of the {thing}?"],
             ["The {thing} was {colour}.", "It was {colour}."]),
            (["Who gave {h} the {thing}?", "Who made {h} brave?"],
             ["{F} the {fk} gave {H} the {thing}.", "{F} gave {H} the {thing}."]),
        ],
        lessons=["fear grows small beside a friend", "everyone can be brave",
                 "courage can be learned"],
        themes=["courage", "being brave", "{a_k} who is afraid of {fear}", "fear"],
    ),
}

OPENINGS = [
    "Once upon a time, {a_nature} {k} named {H} lived {home}.",
    "Long ago, {a_nature} {k} named {H} lived {home}.",
    "There was once {a_nature} {k} named {H}, who lived {home}.",
    "{Home} lived {a_nature} {k} named {H}.",
    "Many years ago, there was {a_nature} {k} named {H}. {He} lived {home}.",
]
LEARNS = [
    "{H} learned that {lesson}.", "That day {H} learned that {lesson}.",
    "So {H} learned that {lesson}.", "And {H} learned that {lesson}.",
]
ENDINGS = [
    "From then on, {H} and {F} were the best of friends.",
    "{H} and {F} stayed friends for many years.",
    "After that, {H} and {F} met every week.",
]
GENERAL_FACTS = [
    (["Where did {h} live?", "Where was the home of {h}?", "Where does {h} live?"], ["{H} lived {home}."]),
    (["What was {H}?", "What kind of animal was {H}?", "Who was {H}?", "Who is {H}?", "Who is the tale about?",
      "Who is the hero of the tale?", "What was {h} like?", "Who is the story about?"],
     ["{H} was {a_nature} {k}."]),
    (["What was {F}?", "Who was {F}?", "Who is {F}?", "What kind of animal was {F}?"],
     ["{F} was {a_fk}."]),
    (["What was the name of the {k}?", "What was the {k} called?", "What is the name of the {k}?"],
     ["The {k} was called {H}."]),
    (["What was the name of the {fk}?", "What was the {fk} called?", "What is the name of the {fk}?"],
     ["The {fk} was called {F}."]),
    (["What did {h} learn?", "What is the moral of the tale?", "What does the tale teach?",
      "What is the lesson?", "What is the moral of the story?", "What did {h} learn in the end?"],
     ["{H} learned that {lesson}."]),
]
HELPED = (["Who helped {h}?", "Who was the friend of {h}?", "Who came to help?", "Who was the helper?"],
          ["{F} the {fk} helped {H}.", "{F} helped {H}."])
FRIENDS = (["How does the tale end?", "How did the tale end?", "What happened in the end?", "How does the story end?"],
           ["{H} and {F} became friends."])


def make_tale(rng):
    w = _cast(rng)
    name = rng.choice(list(PLOTS))
    plot = PLOTS[name]
    for key, choices in plot["draw"].items():
        w[key] = rng.choice(choices)
    prep, place = rng.choice(HOMES)
    w.update(
        nature=rng.choice(NATURES), colour=rng.choice(COLOURS), good=rng.choice(HAPPY),
        home=f"{prep} {a(rng.choice(LANDSCAPE) + ' ' + place)}", place=place,
        spot=f"{rng.choice(NEAR)} the {rng.choice(SPOTS)}",
        when=f"{rng.choice(WEATHER)} {rng.choice(TIMES)}",
        gift=rng.choice(GIFTS), lesson=rng.choice(plot["lessons"]),
    )
    w["obj"] = f"{w['colour']} {w['thing']}"
    for key in ("obj", "fk", "k", "nature", "thing"):
        w["a_" + key] = a(w[key])
    for key in ("he", "his", "home", "a_fk", "storm"):
        if key in w:
            w[key[0].upper() + key[1:]] = cap(w[key])

    ended = rng.random() < 0.5
    lines = [OPENINGS] + plot["lines"] + [LEARNS] + ([ENDINGS] if ended else [])
    text = " ".join(rng.choice(forms).format(**w) for forms in lines)

    # A question may call the two by name or by kind.
    w["ways_h"] = [w["H"], w["H"], "the " + w["k"]]
    w["ways_f"] = [w["F"], w["F"], "the " + w["fk"]]

    raw = GENERAL_FACTS + plot["facts"] + ([HELPED] if name != "honest" else []) + ([FRIENDS] if ended else [])
    facts = []
    for ask, answers in raw:
        if "animal" in " ".join(ask):  # only an animal can be asked for its kind of animal
            kind = w["k"] if "{H} was {a_nature} {k}." in answers else w["fk"]
            ask = [q for q in ask if "animal" not in q or kind in ANIMALS]
        asked = [q.format(**w, h=h, f=f) for q in ask
                 for h, f in [(rng.choice(w["ways_h"]), rng.choice(w["ways_f"]))]]
        facts.append(Fact([cap(q) for q in asked], [t.format(**w) for t in answers]))
    # Yes or no: asked with the true kind or with another one.
    for who, kind in ((w["H"], w["k"]), (w["F"], w["fk"])):
        other = rng.choice([k for k in KINDS if k not in (w["k"], w["fk"])])
        facts.append(Fact([f"Was {who} {a(kind)}?", f"Is {who} {a(kind)}?"], [f"Yes, {who} was {a(kind)}."]))
        facts.append(Fact([f"Was {who} {a(other)}?", f"Is {who} {a(other)}?"], [f"No, {who} was {a(kind)}."]))
    missing = rng.choice([k for k in KINDS if k not in (w["k"], w["fk"])])
    absent = [Fact([f"Where did the {missing} live?", f"What did the {missing} do?", f"Who was the {missing}?",
                    f"What was the {missing} called?", f"Who helped the {missing}?"],
                   [f"There is no {missing} in this tale."])]

    k, fk, thing = w["k"], w["fk"], w["thing"]
    topics = [
        (a(k), [k]), (a(k), [k]), (a(k), [k]), (f"{a(k)} named {w['H']}", [k, w["H"]]),
        (f"{a(k)} and {a(fk)}", [k, fk]), (f"{a(fk)} and {a(k)}", [k, fk]),
        (f"{a(thing)} and {a(k)}", [k, thing]), (f"{a(k)} and {a(thing)}", [k, thing]),
        (a(thing), [thing]), (w["a_obj"], [w["obj"]]), (f"{w['a_nature']} {k}", [w["nature"], k]),
        (f"{a(k)} who lives {prep} {a(place)}", [k, place]), (f"{a(k)} {prep} {a(place)}", [k, place]),
        (w["H"], [w["H"]]), (f"{w['H']} and {w['F']}", [w["H"], w["F"]]),
        (f"{w['H']} the {k}", [w["H"], k]),
    ] + [
        (t.format(**w), [k] * ("k}" in t) + [thing] * ("thing}" in t)) for t in plot["themes"]]
    return Tale(text, facts, topics, absent)


TALE = ["tale", "tale", "story", "short story", "little tale", "short tale", "nice story", "new tale"]
ASK_ABOUT = [
    "Tell me {a_t} about {x}.", "Tell me {a_t} about {x}.", "Tell me {a_t} about {x}, please.",
    "Can you tell me {a_t} about {x}?", "Could you tell me {a_t} about {x}?", "Please tell me {a_t} about {x}.",
    "I would like to hear {a_t} about {x}.", "I want {a_t} about {x}.", "Do you know {a_t} about {x}?",
    "Write {a_t} about {x}.", "Give me {a_t} about {x}.", "Make up {a_t} about {x}.", "{A_t} about {x}, please.",
    "Let me hear {a_t} about {x}.", "Tell us {a_t} about {x}.",
]
ASK_ANY = [
    "Tell me {a_t}.", "Tell me {a_t}, please.", "Can you tell me {a_t}?", "Please tell me {a_t}.",
    "I would like to hear {a_t}.", "Do you know {a_t}?", "{A_t}, please.", "Write {a_t}.", "Make up {a_t}.",
]
ANOTHER = ["Tell me another one.", "Another tale, please.", "Can you tell me another story?", "One more, please.",
           "I would like to hear another one."]
GREET = [("Hello!", "Hello! Would you like to hear a tale?"), ("Hi!", "Hello! Would you like to hear a tale?"),
         ("Good morning!", "Good morning! Would you like to hear a tale?"),
         ("Good evening!", "Good evening! Would you like to hear a tale?"),
         ("Hey there!", "Hello! Would you like to hear a tale?"),
         ("Hello, how are you?", "I am well, thank you. Would you like to hear a tale?"),
         ("How are you?", "I am well, thank you. Would you like to hear a tale?")]
SELF = [("Who are you?", "I am a teller of small tales. Ask me for one!"),
        ("What are you?", "I am a teller of small tales. Ask me for one!"),
        ("What is your name?", "I have no name. I am a teller of small tales."),
        ("Do you have a name?", "I have no name. I am a teller of small tales."),
        ("What can you do?", "I can tell small tales and answer questions about them."),
        ("How can you help me?", "I can tell small tales and answer questions about them."),
        ("What do you know?", "I can tell small tales and answer questions about them.")]
THANK = [("Thank you!", "You are welcome!"), ("Thanks!", "You are welcome!"),
         ("Thank you, that was lovely.", "You are welcome! I am glad you liked it."),
         ("That was a nice tale.", "I am glad you liked it."), ("I liked that story.", "I am glad you liked it."),
         ("What a lovely tale!", "I am glad you liked it."), ("Goodbye!", "Goodbye! Come back for another tale."),
         ("Bye!", "Goodbye! Come back for another tale."), ("Good night!", "Good night! Come back for another tale.")]
YES = ["Yes, please.", "Yes!", "Yes, tell me one.", "Sure.", "Yes, I would like that.", "Please do."]
SORRY = "I am sorry, I only know tales. Shall I tell you one?"
NOT_YET = "I have not told a tale yet. Shall I tell you one?"
SYSTEM = ["You are a teller of tales.", "You are a helpful assistant.", "You tell tales and answer questions about them.",
          "You are a friendly assistant. Answer in full sentences."]
HERE = ["Here is a tale: {t} {q}", "Listen to this tale. {t} {q}", "Read this story: {t} {q}", "{t} {q}",
        "This is my tale. {t} Now tell me: {q}", "{q} {t}", "Answer a question about this tale. {t} {q}"]


def _request(rng, tale):
    """A request the tale fits, and the words that show it does."""
    t = rng.choice(TALE)
    if rng.random() < 0.15:
        x, words, form = "", [], rng.choice(ASK_ANY)
    else:
        (x, words), form = rng.choice(tale.topics), rng.choice(ASK_ABOUT)
    return form.format(a_t=a(t), A_t=cap(a(t)), x=x), words


def _type(rng, text):
    """Users are not always careful: some turns lose their capital or their last mark."""
    if rng.random() < 0.12 and text[:2] != "I ":
        text = text[0].lower() + text[1:]
    if rng.random() < 0.12 and text[-1] in ".?!":
        text = text[:-1]
    return text


@dataclass
class Turn:
    user: str
    assistant: str
    accept: list = field(default_factory=list)   # right answers, where the turn asks about a tale
    words: list = field(default_factory=list)    # words a told tale must hold
    sort: str = ""


def _questions(rng, tale, count):
    turns = []
    for fact in rng.sample(tale.facts, min(count, len(tale.facts))):
        turns.append(Turn(_type(rng, rng.choice(fact.ask)), fact.answers[0], fact.answers, sort="fact"))
    if rng.random() < 0.08:
        fact = tale.absent[0]
        turns.insert(rng.randrange(len(turns) + 1),
                     Turn(_type(rng, rng.choice(fact.ask)), fact.answers[0], fact.answers, sort="absent"))
    return turns


def _small_talk(rng):
    pick = rng.random()
    if pick < 0.55:
        fill = {key: rng.choice(values) for key, values in FILL.items()}
        return Turn(_type(rng, rng.choice(OFF_TOPIC).format(**fill)), SORRY, [SORRY], sort="off topic")
    said, answer = rng.choice(SELF if pick < 0.75 else THANK if pick < 0.85 else GREET)
    return Turn(_type(rng, said), answer, [answer], sort="talk")


def _told(rng, questions):
    """A request and its tale, then so many questions (least, most)."""
    tale = make_tale(rng)
    asked, words = _request(rng, tale)
    text = tale.text
    if rng.random() < 0.04:
        unknown = rng.choice(UNKNOWN)
        t = rng.choice(TALE)
        asked = rng.choice(ASK_ABOUT).format(a_t=a(t), A_t=cap(a(t)), x=a(unknown))
        text, words = f"I know no tale about {a(unknown)}, but here is another one. {text}", []
    return [Turn(_type(rng, asked), text, words=words, sort="tale")] + \
        _questions(rng, tale, rng.randint(*questions))


def make_dialogue(rng, questions=(3, 6)):
    """(system text or None, turns), with so many questions about a tale (least, most)."""
    fewer = (questions[0] // 2, questions[1] // 2)  # where several tales share the context
    pick = rng.random()
    if pick < 0.66:
        turns = _told(rng, questions)
        if rng.random() < 0.12:
            said, answer = rng.choice(GREET)
            turns.insert(0, Turn(_type(rng, said), answer, [answer], sort="talk"))
            if rng.random() < 0.5:  # the offer is taken up without naming a subject
                turns[1] = Turn(_type(rng, rng.choice(YES)), make_plain(turns[1].assistant), sort="tale")
    elif pick < 0.83:
        tale = make_tale(rng)
        turns = _questions(rng, tale, rng.randint(*questions))
        turns[0].user = rng.choice(HERE).format(t=tale.text, q=cap(turns[0].user))
    elif pick < 0.93:
        turns = _told(rng, fewer)
        more = _told(rng, fewer)
        if rng.random() < 0.4:
            more[0] = Turn(_type(rng, rng.choice(ANOTHER)), make_plain(more[0].assistant), sort="tale")
        turns += more
        if rng.random() < 0.5:
            turns += _told(rng, fewer)
    else:
        turns = [_small_talk(rng) for _ in range(rng.randint(1, 3))]
        if rng.random() < 0.3:
            fact = rng.choice(make_tale(rng).facts)
            turns.insert(0, Turn(_type(rng, rng.choice(fact.ask)), NOT_YET, [NOT_YET], sort="talk"))
        if turns[-1].assistant in (SORRY, NOT_YET) and rng.random() < 0.5:
            turns.append(Turn(_type(rng, rng.choice(YES)), make_tale(rng).text, sort="tale"))
    if rng.random() < 0.15:
        turns.insert(rng.randint(1, len(turns)), _small_talk(rng))
    if rng.random() < 0.1:
        said, answer = rng.choice(THANK)
        turns.append(Turn(_type(rng, said), answer, [answer], sort="talk"))
    return (rng.choice(SYSTEM) if rng.random() < 0.1 else None), turns


def make_plain(text):
    """The tale without the excuse that may stand before it."""
    return text.split("here is another one. ")[-1]
