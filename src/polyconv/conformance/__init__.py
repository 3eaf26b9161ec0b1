"""What shows that polyconv is right: published cases, random problems, and other engines as witnesses."""
