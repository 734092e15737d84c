; x86-64-v3

define void @f(ptr noalias readonly captures(none) align 4 %A, ptr noalias captures(none) align 4 dereferenceable(8) %C, i64 %n, i64 %tid, i64 %nthreads, ptr %barrier) nounwind "stackrealign" {
entry:
  %.3 = icmp eq i64 %tid, 0
  br i1 %.3, label %first.1, label %join.2
first.1:
  store float 0x0000000000000000, ptr %C, align 4
  %.4 = getelementptr float, ptr %C, i64 1
  store float 0x3FF0000000000000, ptr %.4, align 4
  %.5 = udiv i64 %n, 16
  %.8 = icmp slt i64 0, %.5
  br i1 %.8, label %i_body.6, label %i_done.7
i_body.6:
  %i.9 = phi i64 [ 0, %first.1 ], [ %i_next.28, %i_body.6 ]
  %.10 = mul nsw i64 %i.9, 16
  %.11 = getelementptr float, ptr %A, i64 %.10
  %.12 = load <8 x float>, ptr %.11, align 4
  %.13 = getelementptr float, ptr %.11, i64 8
  %.14 = load <8 x float>, ptr %.13, align 4
  %.15 = fadd contract <8 x float> %.12, %.14
  %.16 = shufflevector <8 x float> %.15, <8 x float> poison, <4 x i32> <i32 0, i32 1, i32 2, i32 3>
  %.17 = shufflevector <8 x float> %.15, <8 x float> poison, <4 x i32> <i32 4, i32 5, i32 6, i32 7>
  %.18 = fadd contract <4 x float> %.16, %.17
  %.19 = shufflevector <4 x float> %.18, <4 x float> poison, <2 x i32> <i32 0, i32 1>
  %.20 = shufflevector <4 x float> %.18, <4 x float> poison, <2 x i32> <i32 2, i32 3>
  %.21 = fadd contract <2 x float> %.19, %.20
  %.22 = shufflevector <2 x float> %.21, <2 x float> poison, <1 x i32> zeroinitializer
  %.23 = shufflevector <2 x float> %.21, <2 x float> poison, <1 x i32> splat (i32 1)
  %.24 = fadd contract <1 x float> %.22, %.23
  %.25 = extractelement <1 x float> %.24, i64 0
  %.26 = load float, ptr %C, align 4
  %.27 = fadd contract float %.26, %.25
  store float %.27, ptr %C, align 4
  %i_next.28 = add nuw nsw i64 %i.9, 1
  %.29 = icmp slt i64 %i_next.28, %.5
  br i1 %.29, label %i_body.6, label %i_done.7, !llvm.loop !0
i_done.7:
  br label %join.2
join.2:
  ret void
}


!0 = distinct !{!0, !{!"llvm.loop.vectorize.enable", i1 false}, !{!"llvm.loop.unroll.disable"}}
; znver4

define void @f(ptr noalias readonly captures(none) align 4 %A, ptr noalias captures(none) align 4 dereferenceable(8) %C, i64 %n, i64 %tid, i64 %nthreads, ptr %barrier) nounwind "stackrealign" {
entry:
  %.3 = icmp eq i64 %tid, 0
  br i1 %.3, label %first.1, label %join.2
first.1:
  store float 0x0000000000000000, ptr %C, align 4
  %.4 = getelementptr float, ptr %C, i64 1
  store float 0x3FF0000000000000, ptr %.4, align 4
  %.5 = udiv i64 %n, 16
  %.8 = icmp slt i64 0, %.5
  br i1 %.8, label %i_body.6, label %i_done.7
i_body.6:
  %i.9 = phi i64 [ 0, %first.1 ], [ %i_next.28, %i_body.6 ]
  %.10 = mul nsw i64 %i.9, 16
  %.11 = getelementptr float, ptr %A, i64 %.10
  %.12 = load <16 x float>, ptr %.11, align 4
  %.13 = shufflevector <16 x float> %.12, <16 x float> poison, <8 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7>
  %.14 = shufflevector <16 x float> %.12, <16 x float> poison, <8 x i32> <i32 8, i32 9, i32 10, i32 11, i32 12, i32 13, i32 14, i32 15>
  %.15 = fadd contract <8 x float> %.13, %.14
  %.16 = shufflevector <8 x float> %.15, <8 x float> poison, <4 x i32> <i32 0, i32 1, i32 2, i32 3>
  %.17 = shufflevector <8 x float> %.15, <8 x float> poison, <4 x i32> <i32 4, i32 5, i32 6, i32 7>
  %.18 = fadd contract <4 x float> %.16, %.17
  %.19 = shufflevector <4 x float> %.18, <4 x float> poison, <2 x i32> <i32 0, i32 1>
  %.20 = shufflevector <4 x float> %.18, <4 x float> poison, <2 x i32> <i32 2, i32 3>
  %.21 = fadd contract <2 x float> %.19, %.20
  %.22 = shufflevector <2 x float> %.21, <2 x float> poison, <1 x i32> zeroinitializer
  %.23 = shufflevector <2 x float> %.21, <2 x float> poison, <1 x i32> splat (i32 1)
  %.24 = fadd contract <1 x float> %.22, %.23
  %.25 = extractelement <1 x float> %.24, i64 0
  %.26 = load float, ptr %C, align 4
  %.27 = fadd contract float %.26, %.25
  store float %.27, ptr %C, align 4
  %i_next.28 = add nuw nsw i64 %i.9, 1
  %.29 = icmp slt i64 %i_next.28, %.5
  br i1 %.29, label %i_body.6, label %i_done.7, !llvm.loop !0
i_done.7:
  br label %join.2
join.2:
  ret void
}


!0 = distinct !{!0, !{!"llvm.loop.vectorize.enable", i1 false}, !{!"llvm.loop.unroll.disable"}}
