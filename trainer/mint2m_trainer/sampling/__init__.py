"""Drawing responses from the resident prefix: the pages that train also decode.

`draw` is one token from its logits, `continuation` the rows of responses under way, `decode` the loop over tokens.
"""
