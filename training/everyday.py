"""Everyday lines: greetings, numbers, times, names, small talk, short answers, developer's phrases.

GRAMMAR's patterns are parted by | and line ends; {slot} draws from SLOTS. All written for this project.
"""

import re

ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen"
).split()
TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()


def spell(n, and_=""):
    """0 <= n < 10**9 in words; and_ is 'and ' or '' before the last two digits."""
    if n < 20:
        return ONES[n]
    if n < 100:
        return TENS[n // 10 - 2] + (f"-{ONES[n % 10]}" if n % 10 else "")
    size, name = next(x for x in ((10**6, "million"), (1000, "thousand"), (100, "hundred")) if n >= x[0])
    tail = f" {and_ if size == 100 else ''}{spell(n % size, and_)}" if n % size else ""
    return f"{spell(n // size, and_)} {name}{tail}"


LISTS = {
    "name": "Anna Ben Carla David Emma Frank Grace Henry Isabel Jack Karen Liam Maria Nathan Olivia Peter "
    "Rachel Sam Tina Victor Wendy Zoe Alex Chris Jordan Michael Sarah James Robert Linda Susan Paul "
    "Mark Lucy Kevin Laura Joe Miso Daniel Sofia Ahmed Fatima Priya Ravi Chen Yuki Hiroshi Elena Ivan "
    "Olga Pedro Lucia Hans Greta Amara Kofi Noah Ava Ethan Mia Lucas Chloe Oscar Ruby Felix Nora Hugo "
    "Ella Leo Alice Simon Julia Martin Claire Thomas Helen George Diana Arthur Ruth Walter Irene Dennis "
    "Joyce Ralph Gloria Eugene Marie Louis Philip Bruce Beth Tom Bill",
    "last": "Smith Johnson Williams Brown Jones Garcia Miller Davis Wilson Anderson Taylor Moore Jackson Martin "
    "Lee Thompson White Harris Clark Lewis Robinson Walker Young King Wright Scott Green Baker Adams "
    "Nelson Hill Campbell Mitchell Roberts Carter Phillips Evans Turner Parker Collins Edwards Stewart "
    "Morris Murphy Cook Rogers Cooper Peterson",
    "city": "London Paris Tokyo Boston Chicago Berlin Madrid Rome Sydney Toronto Dublin Vienna Oslo Athens "
    "Cairo Seattle Denver Dallas Miami Houston Amsterdam Brussels Prague Warsaw Lisbon Moscow Beijing "
    "Delhi Mumbai Singapore Bangkok Nairobi Lagos Lima Montreal Vancouver Atlanta Phoenix Detroit "
    "Portland Austin Manchester Edinburgh",
    "day": "Monday Tuesday Wednesday Thursday Friday Saturday Sunday",
    "month": "January February March April May June July August September October November December",
    "ord": "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth "
    "fourteenth fifteenth sixteenth seventeenth eighteenth nineteenth twentieth twenty-first "
    "twenty-second twenty-third twenty-fourth twenty-fifth twenty-sixth twenty-seventh twenty-eighth "
    "twenty-ninth thirtieth thirty-first",
    "letter": "A B C D E F G H I J K L M N O P Q R S T U V W X Y Z",
    "things": "apples books chairs dogs cats houses cars people children tickets dollars miles minutes hours days "
    "weeks eggs letters pages steps bottles boxes files tests errors warnings seconds messages photos "
    "keys plates cups shoes questions answers lines words rows columns packages users threads samples "
    "frames degrees percent meters pounds",
    "thing": "book chair dog cat house car phone ticket letter key plate cup shoe question table window door "
    "garden bag coat hat bicycle camera clock lamp mirror pencil piano guitar radio river road school "
    "shop song spoon train boat tree umbrella watch bottle basket blanket bridge bucket button candle "
    "carpet cheese church corner desk drawer envelope fence field fire flag floor flower fork glass "
    "hammer island jacket kettle kitchen ladder lake leaf map medal museum newspaper orange painting "
    "path pillow pocket rope sandwich shelf ship spider stone sweater ticket towel village wallet wheel "
    "yard puppy kitten horse sheep rabbit story picture sofa stove roof wall box present",
    "adj": "new old small large red blue green yellow heavy light clean dirty quiet loud cheap expensive "
    "beautiful broken empty full warm cold wet dry soft hard bright dark long short wide narrow round "
    "square strange lovely simple wooden",
    "food": "bread soup rice pasta salad pizza chicken fish cheese butter honey chocolate coffee tea milk juice "
    "water lemonade cake pie cookies pancakes yogurt cereal beans potatoes carrots tomatoes onions "
    "mushrooms peaches grapes bananas oranges strawberries toast jam noodles curry bacon sausages "
    "ginger garlic pepper vinegar",
    "job": "teacher doctor nurse farmer lawyer driver pilot painter writer singer dancer baker butcher "
    "engineer plumber carpenter soldier sailor student waiter manager scientist journalist photographer "
    "designer programmer neighbor friend brother sister mother father uncle aunt cousin boss "
    "grandmother grandfather captain judge mayor tailor",
    "ed": "bought sold found lost broke fixed painted cleaned moved carried dropped opened closed borrowed "
    "saw liked wanted remembered forgot noticed measured wrapped drew hid kept picked pushed pulled "
    "washed threw took brought left",
    "ing": "reading writing cooking sleeping walking running swimming singing dancing working driving talking "
    "laughing waiting painting fishing shopping studying traveling cycling climbing gardening listening "
    "thinking playing knitting",
    "adv": "slowly quickly quietly loudly carefully happily sadly early late twice again tonight tomorrow "
    "yesterday today often always never sometimes usually already soon outside inside upstairs "
    "downstairs together alone",
    "place": "park kitchen garden office library market station airport hospital school bank museum hotel "
    "restaurant beach forest mountains village theater church factory basement attic bathroom bedroom "
    "street corner bridge harbor",
    "prep": "in near behind beside outside across_from next_to close_to",
    "weather": "sunny cloudy rainy windy foggy snowy stormy cold warm hot humid freezing mild dry wet",
    "tool": "build test server compiler script program download upload backup update install deployment "
    "pipeline query job release container daemon client editor terminal database branch merge commit "
    "review lint check benchmark migration",
    "state": "finished failed started stopped passed crashed succeeded restarted paused resumed completed expired",
    "code": "function class module file folder package variable loop test string list table array branch commit "
    "repository library socket thread process buffer cache server method argument key value token model "
    "layer parameter",
    "acro": "API CPU GPU USB URL HTTP PDF TV HTML SQL DNS SSH IDE RAM CSS FAQ ID UK USA OK",
    "hail": "Hello Hi Good_morning Good_evening Good_afternoon Hey Welcome Welcome_back Hi_there Hello_there",
    "pron": "I you he she we they",
    "poss": "my your his her our their",
    "sub": "run stop open close check save delete rename move copy read write change test build fix review "
    "merge revert",
    "short": "Yes No Maybe Sure Okay Done Ready Stop Start Go Wait Please Thanks Thank_you Sorry Hello Hi "
    "Goodbye Bye Welcome Yes,_please No,_thank_you Of_course Not_yet Not_now All_done Well_done "
    "Good_job Good_night Good_luck Never_mind Excuse_me Come_in Sit_down Hurry_up Look_out I_see I_know "
    "I_agree I_think_so I_hope_so See_you See_you_soon See_you_later See_you_tomorrow Take_care "
    "That's_right That's_fine That's_great No_problem My_pleasure Right_away One_moment Just_a_second "
    "Hold_on Go_ahead Try_again Let's_go Here_we_go It_works It_failed Build_finished Tests_passed "
    "Cheers Congratulations Happy_birthday Nice_to_meet_you You're_welcome Absolutely Exactly Perfect "
    "Wonderful Great Fine Correct Wrong Left Right Up Down Next Previous Cancel Continue Error Warning "
    "Finished Saved Loading Connected Disconnected Enough Almost Nothing Everything Nobody Today "
    "Tomorrow Later Why_not",
    "ask": "Really Are_you_sure What Why How When Where Who What_time_is_it How_are_you How_much What's_next "
    "Is_it_ready Can_you_hear_me Where_are_you Who_is_it What_happened Anything_else Did_it_work "
    "Are_you_there May_I_come_in",
}
SLOTS = {k: [w.replace("_", " ") for w in v.split()] for k, v in LISTS.items()}

GRAMMAR = """
{hail}, my name is {name}.|{hail}, {name}.|{hail}, {name}, how are you today?|{hail}, and welcome to {city}.
This is {name} {last}.|{hail}, {name} {last} speaking.|Have you met {name} {last}?|{name} and {name} live in {city}.
My name is {name}, and I am from {city}.|{short}.|{short}!|{short}, {name}.|{ask}?|{ask}, {name}?|{short}. {short}.
{name}!|{name}?|{number}.|{city}.|{day}.|{food}, please.|The {adj} {thing}.|{letter}.
It is {hour} {minute} in the {part}.|It is {hour} o'clock.|The train leaves at {hour} {minute}.
Wake me up at {hour} {minute}, please.|Set a timer for {small} minutes.|The meeting is on {day}, {month} {ord}.
{poss} birthday is on {month} {ord}.|Please call me next {day}.|We arrive in {city} on {day}.|See you on {day}.
We have {number} {things}.|There are {number} {things} in the {place}.|The number is {number}.
It costs {number} dollars and {small} cents.|{digits}.|My phone number is {digits}.
Flight {small} to {city} leaves at {hour} {minute}.|{small} plus {small} is {number}.
{small} times {small} is {number}.|In the year {year}, everything changed.|She was born in {year}.
The temperature is {small} degrees.|About {small} percent of the {things} are {adj}.|Point {digit} {digit}.
It is {small} point {digit} {things} long.|Chapter {small}, page {number}.|Room {number} is on the {ord} floor.
Version {digit} point {small} is out.|{small} {things}, please.|The {job} {ed} a {adj} {thing}.
The {job} {ed} the {thing} {prep} the {place}.|{pron} {ed} {poss} {adj} {thing} {adv}.
{poss} {job} {ed} the {thing} {adv}.|The {thing} is {adj} and {adj}.|The {adj} {thing} was {prep} the {place}.
A {adj} {thing} and a {adj} {thing} were left {prep} the {place}.|{pron} never {ed} the {adj} {thing}.
The {job} was {ing} {prep} the {place} when the {thing} fell.|{name} likes {ing} and {ing}.
We went {ing} in the {place}, and then we had {food}.|{name} is {ing} {adv}.
Put the {thing} on the {thing}, and bring me the {adj} {thing}.|Take the {adj} {thing} to the {place}.
Where did you put the {adj} {thing}?|Who {ed} the {thing}?|Is the {thing} {prep} the {place}?
Do you want the {adj} {thing} or the {adj} one?|Can you bring {poss} {thing} to the {place}?
Did the {job} really {sub} it?|I would like some {food} and {food}.|Would you like {food} with your {food}?
We ran out of {food}, so we ate {food}.|The {food} was too {adj} for the {job}.|{food}, {food}, and {food}.
Add the {food} to the {food} and stir {adv}.|There is {food} in the {place}, next to the {food}.
The weather in {city} is {weather} and {weather}.|It will be {weather} on {day}.
If it is {weather}, we will stay in the {place}.|Turn left at the {place}, then go straight for {small} {things}.
The {place} is closed on {day}.|Keep the {thing} {adv}.|The {tool} has {state}.
The {tool} {state} after {small} seconds.|Your {tool} is {adj}.|The {tool} {state} with {small} errors.
{tool} {state}.|{small} tests passed, {small} failed.|There is an error in line {number}.|The {code} is empty.
The {code} was not found.|Please {sub} the {code} and {sub} the {tool} again.|I {ed} the {code} in the {code}.
Do you want me to {sub} the {code}?|Shall I {sub} the {tool} now?|I am going to {sub} the {code} before the {tool}.
The {acro} is down.|Open the {acro} and {sub} the {code}.|The {acro} returned {number}.|Check the {acro} {code}.
{name}, your {tool} is ready for review.|The {tool} needs your attention.|Waiting for the {tool} to finish.
The {code} takes a {code} and returns a {code}.|Memory use is at {small} percent.|{small} files changed.
The {code} is out of date.|New message from {name}.|I think {pron} {ed} it {adv}.
What did {name} say about the {thing}?|{name} said that the {job} {ed} the {adj} {thing}.
I have not seen {name} since {day}.|Thank you, {name}, that is lovely.|Let me know when the {thing} is {adj}.
I am sorry, {name}, but the {thing} is {adj}.|Why was the {job} {ing} so {adv}?|How many {things} do you need?
What a {adj} {thing}!|The {job} and the {job} {ed} {small} {things}.
Every {day}, the {job} goes {ing} {prep} the {place}.|You can {sub} the {thing} {adv}.
Don't {sub} the {thing}, it is {adj}.|{letter}, {letter}, {letter}.|The letter {letter} comes after {letter}.
Press {letter} to {sub} the {code}.|Hello from {name}.|This voice runs on your own computer.|I can read text aloud.
When {name} came home, the {thing} was already {adj}.
After the {thing} broke, {pron} went to the {place} and {ed} a {adj} one.
Both the {thing} and the {thing} belong to {name}.|The {place} smelled of {food} and {food}.
{pron} could not find {poss} {thing}, so {pron} {ed} the {thing} instead.
Two {adj} {things} and one {adj} {thing} stood {prep} the {place}.
"""


def everyday(rng, count):
    """About `count` lines, drawn with rng; duplicates are the caller's to drop."""
    patterns = [p for line in GRAMMAR.strip().splitlines() for p in line.split("|")]
    sizes = ((0, 20), (0, 99), (0, 999), (1000, 9999), (1000, 2 * 10**6))
    made = {
        "number": lambda: spell(rng.choice([rng.randint(*size) for size in sizes]), rng.choice(("", "and "))),
        "small": lambda: spell(rng.randint(2, 99)),
        "digit": lambda: ONES[rng.randint(0, 9)],
        "digits": lambda: ", ".join(ONES[rng.randint(0, 9)] for _ in range(rng.randint(3, 8))),
        "hour": lambda: ONES[rng.randint(1, 12)],
        "minute": lambda: rng.choice(("thirty", "fifteen", "forty-five", "ten", "twenty", "oh five", "fifty-five")),
        "part": lambda: rng.choice(("morning", "evening", "afternoon")),
        "year": lambda: rng.choice(
            (
                f"{spell(rng.randint(17, 20))} {spell(rng.randint(11, 99))}",
                f"two thousand {'and ' * rng.randint(0, 1)}{ONES[rng.randint(1, 12)]}",
            )
        ),
    }
    fill = lambda m: made[m[1]]() if m[1] in made else rng.choice(SLOTS[m[1]])
    lines = []
    while len(lines) < 2 * count:
        line = re.sub(r"\{(\w+)\}", fill, rng.choice(patterns))
        lines.append(re.sub(r"\b([Aa]) (?=[aeiou])", r"\1n ", line))
    return lines
