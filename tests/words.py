"""Phrases that the words page in CONTRIBUTING.md rules out."""

# A pattern, and what to write instead.
PHRASES = {
    r"\b(has|have|had|does|do) not[.,;:)\"]": "say it in full: 'is not in the model'",
    r"(?<!there )(?<!There )\b(is|are|was) no (?!longer\b|more\b|(larg|small|fast|slow)er\b)": "'is not a …'",
    r"\b(told|tells|telling)\b": "'reports', 'shows', 'says', 'lists'",
    r"\bneither knows\b": "'does not load', 'does not support'",
    r"\bfronts?\b(?! end|-end)(?<!in front)(?<!up front)": "'prefix'",
    r"\bshall\b": "'must' or 'will'",
    r"\b(heeds?|heeded|thereof|hitherto|therein|alike|hence)\b": "a word people say",
    r"\b(that|these|those|the|this) very\b": "leave 'very' out",
    r"\bin silence\b|\bwithout a word\b": "'silently'",
    r"\b(lies|stands) (in|at|on|over|there|under|where|outside|elsewhere|below|above|behind|beside)\b": "'is in'",
    r"\bof such\b[.,;:)]|\bsuch of\b": "name the things",
    r"\blook(s|ed|ing)? (once )?at (the |every |each |all )?(value|gradient|leaf|leaves)": "'measure' or 'read'",
    r"\bbut one\b": "'only one'",
    r"\ball that (is|was) wrong\b": "'every problem'",
    r"\bmeant so\b|\bis so that\b": "say it in ordinary order",
    r"\b(?<!as )so (it|they|that) (is|are) (said|told)\b": "say it in ordinary order",
}
