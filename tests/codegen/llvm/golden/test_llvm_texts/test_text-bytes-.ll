; x86-64-v3

define void @f(ptr noalias readonly captures(none) align 1 %A, ptr noalias readonly captures(none) align 1 %B, ptr noalias captures(none) align 4 %C, i64 %n, i64 %tid, i64 %nthreads, ptr %barrier) nounwind "stackrealign" {
entry:
  %.3 = icmp eq i64 %tid, 0
  br i1 %.3, label %first.1, label %join.2
first.1:
  %.4 = udiv i64 %n, 16
  %.7 = icmp slt i64 0, %.4
  br i1 %.7, label %i_body.5, label %i_done.6
i_body.5:
  %i.8 = phi i64 [ 0, %first.1 ], [ %i_next.38, %i_body.5 ]
  %.9 = mul nsw i64 %i.8, 16
  %.10 = getelementptr i8, ptr %A, i64 %.9
  %.11 = load <8 x i8>, ptr %.10, align 1
  %.12 = getelementptr i8, ptr %.10, i64 8
  %.13 = load <8 x i8>, ptr %.12, align 1
  %.14 = zext <8 x i8> %.11 to <8 x i32>
  %.15 = zext <8 x i8> %.13 to <8 x i32>
  %.16 = getelementptr i8, ptr %B, i64 %.9
  %.17 = load <8 x i8>, ptr %.16, align 1
  %.18 = getelementptr i8, ptr %.16, i64 8
  %.19 = load <8 x i8>, ptr %.18, align 1
  %.20 = sext <8 x i8> %.17 to <8 x i32>
  %.21 = sext <8 x i8> %.19 to <8 x i32>
  %.22 = mul <8 x i32> %.14, %.20
  %.23 = mul <8 x i32> %.15, %.21
  %.24 = icmp eq <8 x i8> splat (i8 3), zeroinitializer
  %.25 = select <8 x i1> %.24, <8 x i8> splat (i8 1), <8 x i8> splat (i8 3)
  %.26 = udiv <8 x i8> %.11, %.25
  %.27 = select <8 x i1> %.24, <8 x i8> zeroinitializer, <8 x i8> %.26
  %.28 = icmp eq <8 x i8> splat (i8 3), zeroinitializer
  %.29 = select <8 x i1> %.28, <8 x i8> splat (i8 1), <8 x i8> splat (i8 3)
  %.30 = udiv <8 x i8> %.13, %.29
  %.31 = select <8 x i1> %.28, <8 x i8> zeroinitializer, <8 x i8> %.30
  %.32 = zext <8 x i8> %.27 to <8 x i32>
  %.33 = zext <8 x i8> %.31 to <8 x i32>
  %.34 = add <8 x i32> %.22, %.32
  %.35 = add <8 x i32> %.23, %.33
  %.36 = getelementptr i32, ptr %C, i64 %.9
  store <8 x i32> %.34, ptr %.36, align 4
  %.37 = getelementptr i32, ptr %.36, i64 8
  store <8 x i32> %.35, ptr %.37, align 4
  %i_next.38 = add nuw nsw i64 %i.8, 1
  %.39 = icmp slt i64 %i_next.38, %.4
  br i1 %.39, label %i_body.5, label %i_done.6, !llvm.loop !0
i_done.6:
  br label %join.2
join.2:
  ret void
}


!0 = distinct !{!0, !{!"llvm.loop.vectorize.enable", i1 false}, !{!"llvm.loop.unroll.disable"}}
; znver4

define void @f(ptr noalias readonly captures(none) align 1 %A, ptr noalias readonly captures(none) align 1 %B, ptr noalias captures(none) align 4 %C, i64 %n, i64 %tid, i64 %nthreads, ptr %barrier) nounwind "stackrealign" {
entry:
  %.3 = icmp eq i64 %tid, 0
  br i1 %.3, label %first.1, label %join.2
first.1:
  %.4 = udiv i64 %n, 16
  %.7 = icmp slt i64 0, %.4
  br i1 %.7, label %i_body.5, label %i_done.6
i_body.5:
  %i.8 = phi i64 [ 0, %first.1 ], [ %i_next.24, %i_body.5 ]
  %.9 = mul nsw i64 %i.8, 16
  %.10 = getelementptr i8, ptr %A, i64 %.9
  %.11 = load <16 x i8>, ptr %.10, align 1
  %.12 = zext <16 x i8> %.11 to <16 x i32>
  %.13 = getelementptr i8, ptr %B, i64 %.9
  %.14 = load <16 x i8>, ptr %.13, align 1
  %.15 = sext <16 x i8> %.14 to <16 x i32>
  %.16 = mul <16 x i32> %.12, %.15
  %.17 = icmp eq <16 x i8> splat (i8 3), zeroinitializer
  %.18 = select <16 x i1> %.17, <16 x i8> splat (i8 1), <16 x i8> splat (i8 3)
  %.19 = udiv <16 x i8> %.11, %.18
  %.20 = select <16 x i1> %.17, <16 x i8> zeroinitializer, <16 x i8> %.19
  %.21 = zext <16 x i8> %.20 to <16 x i32>
  %.22 = add <16 x i32> %.16, %.21
  %.23 = getelementptr i32, ptr %C, i64 %.9
  store <16 x i32> %.22, ptr %.23, align 4
  %i_next.24 = add nuw nsw i64 %i.8, 1
  %.25 = icmp slt i64 %i_next.24, %.4
  br i1 %.25, label %i_body.5, label %i_done.6, !llvm.loop !0
i_done.6:
  br label %join.2
join.2:
  ret void
}


!0 = distinct !{!0, !{!"llvm.loop.vectorize.enable", i1 false}, !{!"llvm.loop.unroll.disable"}}
