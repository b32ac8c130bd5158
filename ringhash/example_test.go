package ringhash_test

import (
	"fmt"

	"github.com/sluice-gateway/sluice/ringhash"
)

func Example() {
	ring := ringhash.New([]string{"chat-0", "chat-1", "chat-2"}, 0)
	key := ringhash.Key([]byte("You are a helpful assistant."))
	fmt.Println("ring order:", ring.Order(key))

	loads := []int{3, 3, 3} // requests that each replica serves now
	fmt.Println("all alike:", ring.Pick(key, loads, ringhash.Bound{}))

	first := ring.Order(key)[0]
	loads[first] = 9
	fmt.Println("the first is too busy:", ring.Pick(key, loads, ringhash.Bound{}))

	loads[first] = -1 // draining
	fmt.Println("the first is going away:", ring.Pick(key, loads, ringhash.Bound{}))
	// Output:
	// ring order: [0 1 2]
	// all alike: 0
	// the first is too busy: 1
	// the first is going away: 1
}
