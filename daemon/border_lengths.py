"""What a search by Knuth, Morris and Pratt falls back to."""


def border_lengths(text: str | bytes) -> list[int]:
    """For each prefix the length of its longest proper prefix that is also its end."""
    lengths = [0] * len(text)
    border = 0
    for i in range(1, len(text)):
        while border and text[i] != text[border]:
            border = lengths[border - 1]
        border += text[i] == text[border]
        lengths[i] = border
    return lengths
