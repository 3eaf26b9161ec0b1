"""The algorithm ``generic``: pixels in the lanes, applicable to any rank, type, group and layout."""
