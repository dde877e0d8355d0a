"""Values as pictures: colors for numbers, cells as pixels or characters, and a PNG with a title and a scale."""
