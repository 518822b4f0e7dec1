"""The characters behind the three embedded data sets.

No pretraining character looks like one of the other two sets: its ``glyph_fonts.likeness`` to every digit and to
every basic Latin, Greek, Cyrillic and selected Armenian letter is below LOOK_ALIKE, and variants of such letters
("with hook", "with stroke") were left out by name.
"""

LOOK_ALIKE = 0.85  # largest likeness allowed between a pretraining class and a class of the other sets

DOMAINS = "0123456789"

HUNDRED = (  # Latin, Greek, Cyrillic and Armenian letters, none like a digit, no two alike at the same size
    "ACDEHKLMNPQRUVWXYZabdefkmnoqrtyΔΞΣΦΨαβζηλμνξρςτωДЖЙЛЦЧШЩЪЫЮЯвьэԳԴԵԶԷԸԹԻԽԾԿՀՁՃՄՆՇՉՊՌՎՐՒՔՖէիխծկճմնչպջվ"
)

PRETRAIN = (  # Georgian, Hebrew, Coptic and rare letters, punctuation, arrows, operators, shapes, Canadian syllabics
    'დკოჟრფღჴϗϟϠϻЂЉЊӔŒȸɁʖʞʤʫʬʭᴖᴗᴝᴞ՝՞՟։჻"#%&+<=>_¤©«¬®±»'
    "‘“‣‰′‹›⁋₧₯↖↗↘↙↜↝↩↪↯↰↱↲↳↴↶↷↸↹↺↻↽⇀⇄⇅⇐⇑⇖⇗⇘⇙⇨⇩⇫⇰⇱⇲⇵⇶⇿∓"
    "√∝∞∟∠∸∹≐≒≓≡≤≥⊂⊆⊇⊏⊐⊑⊒⊔⊞⊟⊠⊡⊢⊣⌂⌑⌘⌙⌥⏏■▤▥▧▫▭▲▷►▻▽◀◁◄◅◇◉"
    "○◍◎◐◒◓◔◕◛◜◝◞◟◢◣◤◥◧◨◫◬◭◰◱◲◳◴◵◶◷◸◹◺◿☀☹☺☼☿♀♃♅♡♣♤♧♩♪♫♬"
    "♭⩫⬒⬓⬖⬗⬘⬙⸘⸟⸮ႢႥႧႨႪႫႰႵႼႾჃჅⴀⴂⴆⴏⴐⴚⴜⴝⴟⴢⴤⴥϢϦϧⅎאבגדהלמעפצק"
    "רױͲѤѦѨѺҨԅԉԕԗꙣꙦꙮᴥỺꜨꜩꜴꜸꜼꝆᐅᐋᐏᐒᐘᐟᐫᐴᑁᑆᑐᑗᑛᑠᑣᑰᑵᑸᑻᑿᒊᒏᒔᒗᒚᒟᒭ"
    "ᓀᓅᓉᓍᓕᓘᓝᓣᓦᓩᓮᓶᓹᔂ"
)
